"""The operator: InferencePools become prefill, decode and router workloads."""
