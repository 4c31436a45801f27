"""`make chaos-operator`: edits, kills and losses by a seeded story, and what must hold through all of them.

Boundary: knows Kubernetes and the public contract; of the operator it knows its command line only. What must hold is
judged from outside, by pure functions over the API server's audit log and over every version of pools, Deployments
and pods, put in order by their resourceVersion.
"""
