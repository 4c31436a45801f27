"""vLLM: arguments, probes, ports, metric names, and the bodies of the two legs. Pure."""
