"""The dialogues on which templates are tried."""

from gemma4_compile.confined.dialogues import ANSWER, DIALOGUES, NEEDED, QUESTION, SECOND, SYSTEM


def test_what_is_left_out_is_found_in_letters_of_any_case() -> None:
    turns = DIALOGUES["two turns"]
    assert turns.left_out(f"{QUESTION.upper()} {ANSWER}{SECOND}", "user") is None
    assert turns.left_out(f"{QUESTION} {ANSWER}", "user") == SECOND
    assert turns.left_out(QUESTION + SECOND, "assistant") == ANSWER
    assert DIALOGUES["a system message"].left_out(QUESTION, "system") == SYSTEM
    assert DIALOGUES["a question"].left_out("", "system") is None


def test_no_text_holds_another() -> None:
    """They are found again in a prompt by what they are."""
    texts = {one.content for dialogue in DIALOGUES.values() for one in dialogue.said} - {""}
    assert not [(a, b) for a in texts for b in texts if a != b and a in b]
    assert set(NEEDED) <= DIALOGUES.keys()
