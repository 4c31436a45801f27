"""The CustomResourceDefinition of the InferencePool, generated from its models (`python -m pdpool_api.crd`)."""

from pdpool_api.crd.document import document, text

__all__ = ["document", "text"]
