"""What a short request waits for beside others, in forwards; no clock is looked at."""

from __future__ import annotations

from tests.scripted_turns import CHUNK, Served, ids, in_loop, replies


def test_a_short_request_waits_for_a_step_of_all_a_token_and_no_more() -> None:
    """Beside seven replies it is in one forward more than alone; a step of all takes longer."""

    def body() -> None:
        served, tokens = Served(replies(8)), 20
        for seed in range(7):
            served.ask(ids(5, seed))
        served.turn(10)
        served.log.clear()
        served.finish(served.ask(ids(CHUNK, 9), most=tokens))
        assert served.log == ["read 7", *["step 0 1 2 3 4 5 6 7"] * tokens]
        alone = Served(replies(8))
        alone.finish(alone.ask(ids(CHUNK, 9), most=tokens))
        assert len(served.log) == len(alone.log) + 1, "its first token is chosen in a step of all"

    in_loop(body)


def test_a_short_request_waits_for_a_chunk_a_token_of_a_prompt_that_is_read() -> None:
    """Of a long one beside it, which has a chunk in each turn; with its own not two."""

    def body() -> None:
        served, tokens = Served(replies(8)), 20
        for seed in range(6):
            served.ask(ids(5, seed))
        served.turn(10)
        served.ask(ids(20 * CHUNK, 8))
        served.log.clear()
        served.finish(served.ask(ids(CHUNK, 9), most=tokens))
        kinds = [one.split()[0] for one in served.log]
        assert kinds[: 2 * tokens] == ["read", "step"] * tokens
        assert served.log.count("read 7") == 1
        assert len(served.log) <= 2 * (tokens + 1)

    in_loop(body)
