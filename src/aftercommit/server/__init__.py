"""The process around an application: uvicorn with limits, alone or several under a supervisor, ended within a bound.

Which application it is, it does not know: of the other rooms it needs `http` alone. What one may tell the process that
serves it (`failure`, `shared_figures`) needs no extra; serving needs `aftercommit[serve]`.
"""
