"""A root agent of the user's own, for `lab.train(job, root=decide)`.

`deciding` has the words in which it is asked and answers, `guided` the root agent that asks it, and
`process` the process in which a node calls it. The core finds `packed` and `root_agent` as entry
points.
"""
