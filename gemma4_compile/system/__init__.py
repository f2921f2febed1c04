"""What POSIX and Windows do differently: locks, descriptors, renames, and limits of a process.

Each module holds both forms. The Windows form takes what it calls there (`msvcrt`, `kernel32`) as
an argument, so that it is tested anywhere.
"""
