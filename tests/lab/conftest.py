"""A lab whose nodes are names."""

import pytest
from lab_stand_in import ClusterStandIn, lab_on


@pytest.fixture
def cluster():
    return ClusterStandIn()


@pytest.fixture
def lab(tmp_path, cluster):
    with lab_on(cluster, tmp_path / "runs") as lab:
        yield lab
