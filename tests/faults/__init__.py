"""The fault harness: real processes, real crashes, and checkers that look for what must never happen.

`make faults` runs it; docs/faults.md says how to read a run. `python -m tests.faults --help` lists the options.
"""
