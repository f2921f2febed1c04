"""Pictures, sounds and videos: decoded within limits, and made into what a package takes.

Files are decoded in a process of their own (`confined.media`), where alone the libraries of the
extra `media` read a stranger's bytes.
"""
