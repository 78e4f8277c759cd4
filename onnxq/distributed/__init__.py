"""Work that is done by other processes and machines: shards of a calibration, models of a project.

An engine is anything with the protocol of `concurrent.futures.Executor`. Other packages do the work of a task.
"""
