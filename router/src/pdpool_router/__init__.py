"""The router: one OpenAI-compatible request becomes a prefill leg and a decode leg."""
