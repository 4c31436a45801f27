"""The contract: what operator and router both know. It imports neither."""
