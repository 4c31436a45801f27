"""What watches pdpool: alert rules and the Grafana dashboard, made from the catalogue of metrics.

Boundary: writes files of the chart (`make generate`); runs nothing. The rules name runbooks in `docs/runbooks`.
"""
