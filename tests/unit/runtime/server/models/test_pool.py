"""Which models are loaded, by what is asked and by the memory that there is."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from gemma4_compile.runtime.server.api_error import ApiError
from tests.marks import slow_unless
from tests.pooled_models import LONG_S, Fake, House, run, touch, until, waiting


def test_it_is_loaded_once_for_many_and_stays() -> None:
    house = House({"a": 5, "b": 5})

    async def body() -> None:
        pool = house.pool()
        assert [one.status for one in pool.statuses()] == ["unloaded", "unloaded"]
        await asyncio.gather(*(touch(pool, "a") for _ in range(10)))
        await touch(pool, "a")
        assert [one.status for one in pool.statuses()] == ["loaded", "unloaded"]
        assert [one.loads for one in pool.statuses()] == [1, 0]
        pool.close()

    run(body)
    assert house.told == ["+a", "-a"]


def test_others_answer_while_one_is_loaded() -> None:
    house = House({"a": 5, "b": 5})

    async def body() -> None:
        pool = house.pool()
        await touch(pool, "a")
        house.gate.clear()
        slow = asyncio.create_task(touch(pool, "b"))
        await until(lambda: pool.statuses()[1].status == "loading")
        for _ in range(5):
            await touch(pool, "a")
        house.gate.set()
        await slow

    run(body)
    assert house.told == ["+a", "+b"]


@pytest.mark.parametrize("by_budget", [True, False])
def test_who_was_not_used_for_longest_leaves(by_budget: bool) -> None:
    house = House({"a": 4, "b": 4, "c": 4, "d": 8})
    house.memory, house.free = (12, None) if by_budget else (None, 12)

    async def body() -> None:
        pool = house.pool()
        for name in ("a", "b", "c", "a", "d"):
            await touch(pool, name)

    run(body)
    assert house.told == ["+a", "+b", "+c", "-b", "-c", "+d"]


def test_one_in_use_is_waited_for_and_comes_back_after() -> None:
    house = House({"a": 5, "b": 5}, memory=8)

    async def body() -> None:
        pool = house.pool()
        async with pool.using("a"):
            other = asyncio.create_task(touch(pool, "b"))
            await until(lambda: pool._entries["a"].leaving)
            again = asyncio.create_task(touch(pool, "a"))
            await until(lambda: waiting(pool) == 2)
            assert house.told == ["+a"]
        await asyncio.gather(other, again)

    run(body)
    assert house.told == ["+a", "-a", "+b", "-b", "+a"]


def test_who_leaves_the_queue_drives_nobody_out() -> None:
    house = House({"a": 5, "b": 5}, memory=8)

    async def body() -> None:
        pool = house.pool()
        async with pool.using("a"):
            other = asyncio.create_task(touch(pool, "b"))
            await until(lambda: pool._entries["a"].leaving)
            other.cancel()
            await asyncio.wait([other])
            await until(lambda: not pool._entries["a"].leaving)
        await touch(pool, "a")
        await touch(pool, "b")

    run(body)
    assert house.told == ["+a", "-a", "+b"]


@pytest.mark.parametrize("by_budget", [True, False])
def test_what_can_never_fit_is_refused_and_nobody_leaves(by_budget: bool) -> None:
    house = House({"a": 4, "huge": 13})
    house.memory, house.free = (12, None) if by_budget else (None, 12)

    async def body() -> None:
        pool = house.pool()
        await touch(pool, "a")
        with pytest.raises(ApiError, match=r"`huge` needs 0\.0 MB on a device") as caught:
            await touch(pool, "huge")
        assert (caught.value.status, caught.value.code) == (503, "insufficient_memory")
        await touch(pool, "a")

    run(body)
    assert house.told == ["+a"]


def test_a_load_that_fails_is_told_and_tried_again() -> None:
    house = House({"a": 5})
    house.failing.add("a")

    async def body() -> None:
        pool = house.pool()
        asked = [asyncio.create_task(touch(pool, "a")) for _ in range(3)]
        await asyncio.wait(asked)
        for one in asked:
            error = one.exception()
            assert isinstance(error, ApiError)
            assert error.message == ("the model `a` cannot be loaded: it is damaged; make it again")
        house.failing.clear()
        await touch(pool, "a")

    run(body)
    assert house.told == ["+a"]


def test_an_engine_that_has_ended_is_loaded_anew() -> None:
    house = House({"a": 5}, memory=8)

    async def body() -> None:
        pool = house.pool()
        async with pool.using("a") as loaded:
            assert isinstance(loaded, Fake)
            loaded.is_alive = False
        await touch(pool, "a")

    run(body)
    assert house.told == ["+a", "-a", "+a"]


def test_who_is_idle_leaves_by_itself() -> None:
    house = House({"a": 5}, idle_s=0.01)

    async def body() -> None:
        pool = house.pool()
        async with pool.using("a"):
            await asyncio.sleep(0.05)
            assert house.told == ["+a"]
        await until(lambda: house.told == ["+a", "-a"])
        await touch(pool, "a")

    run(body)
    assert house.told[:3] == ["+a", "-a", "+a"]


def test_a_model_is_let_go_when_a_client_says_so_unless_others_use_it() -> None:
    house = House({"a": 5})

    async def body() -> None:
        pool = house.pool()
        await pool.unload("a")
        async with pool.using("a"):
            await pool.unload("a")
        assert house.told == ["+a"]
        await pool.unload("a")

    run(body)
    assert house.told == ["+a", "-a"]


def test_so_many_wait_and_no_more() -> None:
    house = House({"a": 5}, queue=2)
    house.gate.clear()

    async def body() -> None:
        pool = house.pool()
        asked = [asyncio.create_task(touch(pool, "a")) for _ in range(2)]
        await until(lambda: waiting(pool) == 2)
        with pytest.raises(ApiError, match="2 requests wait already") as caught:
            await touch(pool, "a")
        assert caught.value.status == 429
        house.gate.set()
        await asyncio.gather(*asked)
        await touch(pool, "a")

    run(body)


def test_who_goes_before_its_turn_is_not_loaded() -> None:
    house = House({"a": 5, "b": 5}, memory=8)
    house.gate.clear()

    async def body() -> None:
        pool = house.pool()
        first = asyncio.create_task(touch(pool, "a"))
        await until(house.begun.is_set)
        other = asyncio.create_task(touch(pool, "b"))
        await until(lambda: waiting(pool) == 2)
        other.cancel()
        await asyncio.wait([other])
        house.gate.set()
        await first
        await until(lambda: pool.statuses()[1].status == "unloaded")

    run(body)
    assert house.told == ["+a"]


def test_memory_is_free_before_the_next_load_though_nobody_waits_for_it_any_more() -> None:
    house = House({"a": 5, "b": 5, "c": 5}, memory=8)
    house.exit.clear()

    async def body() -> None:
        pool = house.pool()
        await touch(pool, "a")
        other = asyncio.create_task(touch(pool, "b"))
        await until(house.closing.is_set)
        other.cancel()
        await asyncio.wait([other])
        house.begun.clear()
        third = asyncio.create_task(touch(pool, "c"))
        await until(lambda: waiting(pool) == 1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not house.begun.is_set()
        house.exit.set()
        await third

    run(body)
    assert house.told == ["+a", "-a", "+c"]


def test_a_load_that_fails_leaves_nothing_in_memory() -> None:
    house = House({"a": 5})
    house.failing.add("a")

    async def body() -> None:
        pool = house.pool()
        with pytest.raises(ApiError):
            await touch(pool, "a")
        gc.collect()
        assert [remains() for remains in house.remains] == [None]

    run(body)


def test_who_was_used_while_its_unloading_waited_stays() -> None:
    house = House({"a": 4, "b": 4}, idle_s=0.01)

    async def body() -> None:
        pool = house.pool()
        await touch(pool, "a")
        house.gate.clear()
        house.begun.clear()
        other = asyncio.create_task(touch(pool, "b"))
        await until(house.begun.is_set)
        await until(lambda: pool._entries["a"].timer is None)  # it is time, but not its turn
        pool._idle_s = LONG_S
        await touch(pool, "a")
        house.gate.set()
        await other
        await until(lambda: not pool._tasks)

    run(body)
    assert house.told == ["+a", "+b"]


def test_who_does_not_say_what_it_takes_leaves_before_another_is_refused() -> None:
    house = House({"a": 4, "b": 9, "c": 13}, free=12, unknown={"a"})

    async def body() -> None:
        pool = house.pool()
        for name in "ab":
            await touch(pool, name)
        with pytest.raises(ApiError, match="at most there could be"):
            await touch(pool, "c")

    run(body)
    assert house.told == ["+a", "-a", "+b"]


def test_the_end_refuses_who_waits_and_closes_what_is_loaded() -> None:
    house = House({"a": 5, "b": 5}, memory=8)

    async def body() -> None:
        pool = house.pool()
        async with pool.using("a"):
            other = asyncio.create_task(touch(pool, "b"))
            await until(lambda: pool._entries["a"].leaving)
            pool.begin_stop()
            with pytest.raises(ApiError, match="the server is stopping"):
                await other
            with pytest.raises(ApiError, match="the server is stopping"):
                await touch(pool, "a")
        pool.close()

    run(body)
    assert house.told == ["+a", "stop a", "-a"]


def test_the_end_does_not_wait_for_a_load() -> None:
    house = House({"a": 5})
    house.gate.clear()

    async def body() -> None:
        pool = house.pool()
        asked = asyncio.create_task(touch(pool, "a"))
        await until(house.begun.is_set)
        pool.begin_stop()
        with pytest.raises(ApiError, match="the server is stopping"):
            await asked

    run(body)
    assert house.told == []
    house.gate.set()


@pytest.mark.parametrize("seed", slow_unless(lambda seed: seed < 2, range(5)))
def test_whatever_is_asked_memory_is_never_exceeded_and_all_are_answered(seed: int) -> None:
    """`House.load` holds the sum against the budget."""
    chance = random.Random(seed)
    house = House({"a": 3, "b": 4, "c": 5, "d": 7}, memory=8, idle_s=0.002, queue=1000)
    answered: list[str] = []

    async def body() -> None:
        pool = house.pool()

        async def ask(name: str) -> None:
            await asyncio.sleep(chance.random() * 0.02)
            async with pool.using(name) as loaded:
                assert isinstance(loaded, Fake)
                for _ in range(chance.randrange(3)):
                    await asyncio.sleep(chance.random() * 0.004)
                    assert f"-{name}" not in house.told[last(house.told, f"+{name}") :]
                answered.append(name)

        names = [chance.choice("abcd") for _ in range(60)]
        asked = [asyncio.create_task(ask(name)) for name in names]
        gone = chance.sample(asked, 10)
        for one in gone:
            await asyncio.sleep(0.002)
            one.cancel()
        await asyncio.wait(asked)
        errors = [one.exception() for one in asked if not one.cancelled()]
        assert errors == [None] * len(errors)
        assert len(answered) >= 50
        await until(lambda: house.taken == 0)

    run(body)


def last(told: list[str], word: str) -> int:
    return len(told) - 1 - told[::-1].index(word)
