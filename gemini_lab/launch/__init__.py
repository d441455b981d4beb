"""How agents come to their machines: MPI, etcd and the operators that bring machines.

    operators       operator, the contract, and `mpiexec` by it: mpi, mpi_order, boot
    who join        join; provider, the contract of what starts them, and two of them
    etcd            etcd, of one member; etcd_members, of three; etcd_keeper keeps each running

What is started is in `node`.
"""
