"""Measurements: our parts beside a raw-SQL floor, in one run on one server. Figures are ratios; machines differ."""
