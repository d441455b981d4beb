"""How agents come to their machines: MPI, etcd and the operators that bring machines."""
