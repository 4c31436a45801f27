"""The InferencePool: models of its spec and status.

Boundary: shape, limits, schema defaults and CEL rules. The CRD is generated from these models (`make generate`), and the
operator reads stored objects through them. A field stands here only when something acts on it. Defaults that depend on
another field are properties, applied by the operator, so that the stored object holds only what its author wrote.
"""
