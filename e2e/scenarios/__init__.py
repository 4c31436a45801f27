"""What a scenario on a real cluster is made of: the product installed, pools, engines in pods, load, measurements.

Boundary: shared by the demo and by the tests on the cluster; it judges nothing, callers do.
"""
