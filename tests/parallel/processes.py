"""Runs a function in several processes, as a user's script does, and gives what each returned."""

import pickle

from surestep.parallel.launcher import Processes


def start(function, args, count=2):
    """As ``spawn``, which refuses where the device is in use already, as it is after other tests."""
    Processes(function, args, count, False, "spawn").join()


def ranks(function, *args, count=2, directory):
    """``function(*args)`` in ``count`` processes; their results by rank."""
    start(_keep, (function, args, str(directory)), count)
    return [pickle.loads((directory / f"{rank}.pickle").read_bytes()) for rank in range(count)]


def _keep(index, function, args, directory):
    result = function(*args)
    with open(f"{directory}/{index}.pickle", "wb") as file:
        pickle.dump(result, file)
