"""Third stage: `tiny` learns to see and to hear. `python -m tools.training.tiny.train_media`.

`media_training` has the options and what they write. It is imported here alone where this module is
the program: the worker processes import it as well, and have no use for torch.
"""

if __name__ == "__main__":
    from tools.training.tiny.media_training import arguments, train

    train(arguments())
