"""WGSL of subgroup matrices: calls become statements, and all else stays."""

from __future__ import annotations

import inspect
import re

from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.tiles import subgroup_matrices
from gemma4_compile.targets.wgsl_matrices import WGSL, write_matrices

TEXT = """\
//----
enable f16;

enable subgroups;

var<workgroup> v_7 : array<vec4<u32>, 1280>;
@compute @workgroup_size(128, 1, 1)
fn main_kernel(
  @builtin(local_invocation_id) threadIdx : vec3<u32>
) {
  if (threadIdx.x > 9u) { return; }
  gemma4_matrix_clear(12i);
  gemma4_matrix_left(0i, (&(((vec4<u32>*)v_7)[((i32(threadIdx.x)>>6u) * v_2[1i])])), 5i);
  gemma4_matrix_right(1i, (&(((vec4<u32>*)v_7)[0i])), 9i);
  gemma4_matrix_right_transposed(1i, (&(((vec4<u32>*)v_7)[0i])), 9i);
  gemma4_matrix_multiply_add(12i, 0i, 1i);
  gemma4_matrix_store(12i, (&(((vec4<u32>*)v_7)[(cse_v1 + 4i)])), 18i);
  gemma4_matrix_load(12i, (&(((vec4<u32>*)v_7)[(cse_v1 + 4i)])), 18i);
  workgroupBarrier();
  v_7[0i] = v_7[1i];
  workgroupBarrier();
  v_5[0i] = workgroupUniformLoad((&(((i32*)v_4)[0i])));
}
"""
RESULT = """\
//----
diagnostic(off, chromium.subgroup_matrix_uniformity);
enable chromium_experimental_subgroup_matrix;
enable f16;

enable subgroups;

var<workgroup> v_7 : array<vec4<u32>, 1280>;
@compute @workgroup_size(128, 1, 1)
fn main_kernel(
  @builtin(local_invocation_id) threadIdx : vec3<u32>
) {
  var left0: subgroup_matrix_left<f16, 16, 16>;
  var right1: subgroup_matrix_right<f16, 16, 16>;
  var sum12: subgroup_matrix_result<f32, 16, 16>;
  if (threadIdx.x > 9u) { return; }
  sum12 = subgroup_matrix_result<f32, 16, 16>();
  left0 = subgroupMatrixLoad<subgroup_matrix_left<f16, 16, 16>, row_major>\
(&v_7, u32(((i32(threadIdx.x)>>6u) * v_2[1i])), 5u);
  right1 = subgroupMatrixLoad<subgroup_matrix_right<f16, 16, 16>, col_major>(&v_7, u32(0i), 9u);
  right1 = subgroupMatrixLoad<subgroup_matrix_right<f16, 16, 16>, row_major>(&v_7, u32(0i), 9u);
  sum12 = subgroupMatrixMultiplyAccumulate(left0, right1, sum12);
  subgroupMatrixStore<row_major>(&v_7, u32((cse_v1 + 4i)), sum12, 18u);
  sum12 = subgroupMatrixLoad<subgroup_matrix_result<f32, 16, 16>, row_major>\
(&v_7, u32((cse_v1 + 4i)), 18u);
  workgroupBarrier();
  v_7[0i] = v_7[1i];
  v_5[0i] = workgroupUniformLoad(&v_4[0i]);
}
"""


def test_calls_are_written_out_and_matrices_declared() -> None:
    assert write_matrices(TEXT) == RESULT


PIECES = """\
@group(0) @binding(0) var<storage, read> key_ptr : array<f16>;
  v_3[0i] = gemma4_read_piece((&(key_ptr[((v_1[2i] * 768i) + 8i)])));
"""


def test_arguments_that_are_read_by_pieces_are_arrays_of_them() -> None:
    found = write_matrices(TEXT.replace("var<workgroup>", f"{PIECES}var<workgroup>"))
    assert "var<storage, read> key_ptr : array<vec4<u32>>;" in found
    assert "v_3[0i] = key_ptr[(((v_1[2i] * 768i) + 8i))>>3u];" in found


def test_a_text_without_calls_stays() -> None:
    others = re.sub(r"^.*(gemma4_matrix|workgroupUniformLoad).*\n", "", TEXT, flags=re.MULTILINE)
    assert write_matrices(others) == others


def test_every_call_has_a_text() -> None:
    source = inspect.getsource(subgroup_matrices)
    named = re.findall(r'^[A-Z_]+ = "(gemma4_\w+)"$', source, re.MULTILINE)
    assert set(named) == {*WGSL.statements, subgroup_matrices.READ_PIECE}


def test_limits_with_matrices_are_those_of_the_same_name_and_the_feature() -> None:
    plain, matrices = (target_spec("webgpu", name) for name in ("h200", "h200-matrices"))
    assert set(matrices.features) - set(plain.features) == {subgroup_matrices.FEATURE}
    assert not subgroup_matrices.has_subgroup_matrices(plain)
    assert subgroup_matrices.has_subgroup_matrices(matrices)
