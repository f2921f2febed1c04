"""From a checkpoint to a package: the request, its libraries, their builds."""
