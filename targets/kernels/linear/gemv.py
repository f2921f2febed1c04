"""Matrix times one vector: the decode form of `Linear`, in parts.

The vector is an argument, or every block makes it (gemv_args.py); weights, sums and epilogue are a
product's: of floats (float_gemv.py) or of int8 groups (int8_gemv.py). Definition:
`Linear.definition` in gemma4_compile/operators/linear.py.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypeAlias

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.linear import Linear
from gemma4_compile.operators.tir import function
from gemma4_compile.operators.types import Expr
from gemma4_compile.targets.kernels.common.blocks import Block, launch, resident
from gemma4_compile.targets.kernels.linear.float_gemv import FloatProduct
from gemma4_compile.targets.kernels.linear.gemv_args import GemvArguments
from gemma4_compile.targets.kernels.linear.int8_gemv import Int8Product
from gemma4_compile.targets.kernels.prologues.router_blocks import behind_router, routing_blocks
from gemma4_compile.targets.spec import TargetSpec

Product: TypeAlias = "FloatProduct | Int8Product"


def make_gemv(operator: Linear, spec: TargetSpec) -> tirx.PrimFunc:
    """Make the vector, multiply, add up, store.

    A block that norms may take several tiles, one after the other: every block repeats the norm.
    Grid: the router's blocks if there is one, then tiles / tiles of a block. With a norm, block 0
    after the router's writes the new residual. Reference: `Linear.definition`.
    """
    with function(scheduled=True) as build:
        args = GemvArguments.declare(build, operator)
        product = product_of(operator, args, spec)
        threads, grid = product.threads, blocks_of(product) + routing_blocks(args.router)
        with (
            launch(threads, grid) as (launched, _, thread),
            residence(product),
            behind_router(
                args.router, args.routed, launched, Block(thread, threads, spec.simd_width)
            ) as (index, block),
        ):
            run(product, index, block)
    return build.result


def product_of(
    operator: Linear, args: GemvArguments, spec: TargetSpec, beside: int | None = None
) -> Product:
    """The product of a matmul; `beside` as of `int8_shape`."""
    if operator.is_int8:
        return Int8Product(operator, args, spec, beside)
    return FloatProduct(operator, args, spec)


def residence(product: Product) -> AbstractContextManager[None]:
    """Within a launch: the registers of its threads leave room for other blocks (CUDA)."""
    return resident(product.resident if isinstance(product, Int8Product) else 0)


def blocks_of(product: Product) -> int:
    """Blocks that it takes."""
    return -(-product.tiles // product.iterations)


def run(product: Product, index: Expr, block: Block) -> None:
    """What the block of this index does."""
    product.begin(index, block)
    if product.iterations == 1:
        product.run(0)
    else:
        with T.serial(0, product.iterations) as iteration:
            product.run(iteration)
