"""What all starts of a training script do, of `torch_ranks` and of `pipeline_ranks`."""

import json
from functools import partial
from pathlib import Path

from keeper import Keeper, protect
from tier_ranks import fetched, save

from gemini_lab.engine.discovery import gather
from gemini_lab.engine.iteration_log import IterationLog
from gemini_lab.engine.protection import UnprotectedLoops
from gemini_lab.engine.state.engine_state import EngineState


class Start:
    """One start of a training script: from a payload, or from what gives one once it is needed."""

    def __init__(self, case, wanted):
        self.case = case
        self.keeper, self.losses, self.remarks = Keeper(wanted), {}, []
        self.wholes = {}

    def protect(self, engine, payload, *, data, also):
        script = gather(engine, data=data, client_state=None, also=also, remark=self.remarks.append)
        if self.case.get("unprotected"):
            self.protection = UnprotectedLoops(engine)
            return
        self.state = EngineState(engine, script=script)
        is_recut = callable(payload)
        if is_recut:
            payload, self.remarks, _ = payload(self.state)
        if payload is not None:
            self.state.load(payload)
        else:
            self.rehearse()
        self.protection = protect(
            self.state,
            self.keeper,
            log=self.log_of(engine),
            remark=self.remarks.append,
            rehearse=self.rehearse,
        )
        if is_recut:
            self.state.restore_again()  # nothing is put back while the version is on its way
        if payload is None or is_recut:
            self.protection.send_version(at_top=is_recut)

    def log_of(self, _engine):
        return IterationLog(lambda _: None)

    def rehearse(self):
        if self.case.get("rehearses", True):
            self.state.rehearse(bytearray(self.state.layout.payload_bytes))


def work(request, rank, kind):
    """Make such a start on this rank, and tell what it found."""
    folder, version = Path(request["folder"]), request.get("load")
    payload = None if version is None else (folder / f"shard-{rank}-{version}.bin").read_bytes()
    if request.get("load_tier"):
        payload = partial(fetched, url=str(folder / request["load_tier"]), version=3)
    job = kind(
        request["case"],
        rank=rank,
        seed=request.get("seed", 1),
        wanted=request.get("wanted", ()),
        payload=payload,
    )
    job.train()
    for number, kept in job.keeper.payloads.items():
        (folder / f"shard-{rank}-{number}.bin").write_bytes(kept)
    if request.get("save_tier"):
        save(job.state, str(folder / request["save_tier"]), 3, job.keeper.payloads[3])
    found = {"losses": job.losses, "remarks": job.remarks, "wholes": job.wholes, **job.found()}
    if not request["case"].get("unprotected"):
        found |= {"layout": job.state.layout.to_json(), **job.found_protected()}
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
