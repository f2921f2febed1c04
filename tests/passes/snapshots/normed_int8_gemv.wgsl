//----------------------------------------
enable f16;

@group(0) @binding(0) var<storage, read> branch_ptr : array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> out_ptr : array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> q_scale0_ptr : array<f16>;
@group(0) @binding(3) var<storage, read> q_weight0_ptr : array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> residual_ptr : array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> scalar_ptr : array<f32>;
@group(0) @binding(6) var<storage, read> w_branch_ptr : array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> w_next_ptr : array<vec4<f32>>;
@group(0) @binding(8) var<storage, read_write> y0_ptr : array<f32>;

struct PODArgs {
  packGridDimX: u32
}
@group(0) @binding(9) var<uniform> podArgs : PODArgs;

var<workgroup> v_4 : array<f32, 512>;
var<workgroup> v_5 : array<f32, 64>;
var<workgroup> v_8 : array<u32, 392>;
@compute @workgroup_size(128, 1, 1)
fn snapshot_kernel(
  @builtin(workgroup_id) blockIdx : vec3<u32>,
  @builtin(num_workgroups) gridDim : vec3<u32>,
  @builtin(local_invocation_id) threadIdx : vec3<u32>
) {
  if (blockIdx.z * gridDim.x + blockIdx.x > podArgs.packGridDimX) { return; }
  let v__1 : i32 = i32(blockIdx.z * gridDim.x + blockIdx.x);
  var v : array<vec4<u32>, 3>;
  var v_1 : array<f32, 1>;
  var v_2 : array<f32, 1>;
  var v_3 : array<f32, 1>;
  var v_6 : array<f32, 1>;
  var v_7 : array<f32, 1>;
  var v_9 : array<i32, 1>;
  var v_10 : array<u32, 24>;
  var v_11 : array<i32, 1>;
  var v_12 : array<i32, 1>;
  var v_13 : array<f32, 1>;
  var v_14 : array<i32, 1>;
  var v_15 : array<i32, 1>;
  var v_16 : array<i32, 1>;
  let cse_v1 : i32 = (i32(threadIdx.x)>>4u);
  let cse_v2 : i32 = (i32(threadIdx.x) & 15i);
  let cse_v31 : i32 = (((v__1 * 384i) + (cse_v1 * 48i)) + cse_v2);
  v[0i] = q_weight0_ptr[cse_v31];
  v_1[0i] = f32(q_scale0_ptr[cse_v31]);
  let cse_v35 : i32 = (cse_v31 + 16i);
  v[1i] = q_weight0_ptr[cse_v35];
  v_2[0i] = f32(q_scale0_ptr[cse_v35]);
  let cse_v36 : i32 = (cse_v31 + 32i);
  v[2i] = q_weight0_ptr[cse_v36];
  v_3[0i] = f32(q_scale0_ptr[cse_v36]);
  let v_17 : vec4<f32> = branch_ptr[i32(threadIdx.x)];
  let cse_v3 : i32 = (i32(threadIdx.x) + 128i);
  let v_18 : vec4<f32> = branch_ptr[cse_v3];
  let cse_v4 : i32 = (i32(threadIdx.x) + 256i);
  let v_19 : vec4<f32> = branch_ptr[cse_v4];
  let v_20 : vec4<f32> = residual_ptr[i32(threadIdx.x)];
  let v_21 : vec4<f32> = residual_ptr[cse_v3];
  let v_22 : vec4<f32> = residual_ptr[cse_v4];
  let v_23 : vec4<f32> = w_branch_ptr[i32(threadIdx.x)];
  let v_24 : vec4<f32> = w_branch_ptr[cse_v3];
  let v_25 : vec4<f32> = w_branch_ptr[cse_v4];
  let v_26 : vec4<f32> = w_next_ptr[i32(threadIdx.x)];
  let v_27 : vec4<f32> = w_next_ptr[cse_v3];
  let v_28 : vec4<f32> = w_next_ptr[cse_v4];
  let v_29 : f32 = scalar_ptr[0i];
  let cse_v5 : vec4<f32> = (v_17 * v_17);
  let cse_v6 : vec4<f32> = (v_18 * v_18);
  let cse_v7 : vec4<f32> = (v_19 * v_19);
  let cse_v8 : vec4<f32> = (v_20 * v_20);
  let cse_v9 : vec4<f32> = (v_21 * v_21);
  let cse_v10 : vec4<f32> = (v_22 * v_22);
  let cse_v11 : vec4<f32> = (v_17 * v_23);
  let cse_v12 : vec4<f32> = (v_18 * v_24);
  let cse_v13 : vec4<f32> = (v_19 * v_25);
  let cse_v14 : i32 = (i32(threadIdx.x) * 4i);
  let cse_v18 : vec4<f32> = (v_20 * cse_v11);
  let cse_v19 : vec4<f32> = (v_21 * cse_v12);
  let cse_v20 : vec4<f32> = (v_22 * cse_v13);
  let cse_v21 : vec4<f32> = (cse_v11 * cse_v11);
  let cse_v22 : vec4<f32> = (cse_v12 * cse_v12);
  let cse_v23 : vec4<f32> = (cse_v13 * cse_v13);
  v_4[cse_v14 + 0] = vec4<f32>(((((((cse_v5)[0] + (cse_v5)[1]) + (cse_v5)[2]) + (cse_v5)[3]) + ((((cse_v6)[0] + (cse_v6)[1]) + (cse_v6)[2]) + (cse_v6)[3])) + ((((cse_v7)[0] + (cse_v7)[1]) + (cse_v7)[2]) + (cse_v7)[3])), ((((((cse_v8)[0] + (cse_v8)[1]) + (cse_v8)[2]) + (cse_v8)[3]) + ((((cse_v9)[0] + (cse_v9)[1]) + (cse_v9)[2]) + (cse_v9)[3])) + ((((cse_v10)[0] + (cse_v10)[1]) + (cse_v10)[2]) + (cse_v10)[3])), ((((((cse_v18)[0] + (cse_v18)[1]) + (cse_v18)[2]) + (cse_v18)[3]) + ((((cse_v19)[0] + (cse_v19)[1]) + (cse_v19)[2]) + (cse_v19)[3])) + ((((cse_v20)[0] + (cse_v20)[1]) + (cse_v20)[2]) + (cse_v20)[3])), ((((((cse_v21)[0] + (cse_v21)[1]) + (cse_v21)[2]) + (cse_v21)[3]) + ((((cse_v22)[0] + (cse_v22)[1]) + (cse_v22)[2]) + (cse_v22)[3])) + ((((cse_v23)[0] + (cse_v23)[1]) + (cse_v23)[2]) + (cse_v23)[3])))[0];
  v_4[cse_v14 + 1] = vec4<f32>(((((((cse_v5)[0] + (cse_v5)[1]) + (cse_v5)[2]) + (cse_v5)[3]) + ((((cse_v6)[0] + (cse_v6)[1]) + (cse_v6)[2]) + (cse_v6)[3])) + ((((cse_v7)[0] + (cse_v7)[1]) + (cse_v7)[2]) + (cse_v7)[3])), ((((((cse_v8)[0] + (cse_v8)[1]) + (cse_v8)[2]) + (cse_v8)[3]) + ((((cse_v9)[0] + (cse_v9)[1]) + (cse_v9)[2]) + (cse_v9)[3])) + ((((cse_v10)[0] + (cse_v10)[1]) + (cse_v10)[2]) + (cse_v10)[3])), ((((((cse_v18)[0] + (cse_v18)[1]) + (cse_v18)[2]) + (cse_v18)[3]) + ((((cse_v19)[0] + (cse_v19)[1]) + (cse_v19)[2]) + (cse_v19)[3])) + ((((cse_v20)[0] + (cse_v20)[1]) + (cse_v20)[2]) + (cse_v20)[3])), ((((((cse_v21)[0] + (cse_v21)[1]) + (cse_v21)[2]) + (cse_v21)[3]) + ((((cse_v22)[0] + (cse_v22)[1]) + (cse_v22)[2]) + (cse_v22)[3])) + ((((cse_v23)[0] + (cse_v23)[1]) + (cse_v23)[2]) + (cse_v23)[3])))[1];
  v_4[cse_v14 + 2] = vec4<f32>(((((((cse_v5)[0] + (cse_v5)[1]) + (cse_v5)[2]) + (cse_v5)[3]) + ((((cse_v6)[0] + (cse_v6)[1]) + (cse_v6)[2]) + (cse_v6)[3])) + ((((cse_v7)[0] + (cse_v7)[1]) + (cse_v7)[2]) + (cse_v7)[3])), ((((((cse_v8)[0] + (cse_v8)[1]) + (cse_v8)[2]) + (cse_v8)[3]) + ((((cse_v9)[0] + (cse_v9)[1]) + (cse_v9)[2]) + (cse_v9)[3])) + ((((cse_v10)[0] + (cse_v10)[1]) + (cse_v10)[2]) + (cse_v10)[3])), ((((((cse_v18)[0] + (cse_v18)[1]) + (cse_v18)[2]) + (cse_v18)[3]) + ((((cse_v19)[0] + (cse_v19)[1]) + (cse_v19)[2]) + (cse_v19)[3])) + ((((cse_v20)[0] + (cse_v20)[1]) + (cse_v20)[2]) + (cse_v20)[3])), ((((((cse_v21)[0] + (cse_v21)[1]) + (cse_v21)[2]) + (cse_v21)[3]) + ((((cse_v22)[0] + (cse_v22)[1]) + (cse_v22)[2]) + (cse_v22)[3])) + ((((cse_v23)[0] + (cse_v23)[1]) + (cse_v23)[2]) + (cse_v23)[3])))[2];
  v_4[cse_v14 + 3] = vec4<f32>(((((((cse_v5)[0] + (cse_v5)[1]) + (cse_v5)[2]) + (cse_v5)[3]) + ((((cse_v6)[0] + (cse_v6)[1]) + (cse_v6)[2]) + (cse_v6)[3])) + ((((cse_v7)[0] + (cse_v7)[1]) + (cse_v7)[2]) + (cse_v7)[3])), ((((((cse_v8)[0] + (cse_v8)[1]) + (cse_v8)[2]) + (cse_v8)[3]) + ((((cse_v9)[0] + (cse_v9)[1]) + (cse_v9)[2]) + (cse_v9)[3])) + ((((cse_v10)[0] + (cse_v10)[1]) + (cse_v10)[2]) + (cse_v10)[3])), ((((((cse_v18)[0] + (cse_v18)[1]) + (cse_v18)[2]) + (cse_v18)[3]) + ((((cse_v19)[0] + (cse_v19)[1]) + (cse_v19)[2]) + (cse_v19)[3])) + ((((cse_v20)[0] + (cse_v20)[1]) + (cse_v20)[2]) + (cse_v20)[3])), ((((((cse_v21)[0] + (cse_v21)[1]) + (cse_v21)[2]) + (cse_v21)[3]) + ((((cse_v22)[0] + (cse_v22)[1]) + (cse_v22)[2]) + (cse_v22)[3])) + ((((cse_v23)[0] + (cse_v23)[1]) + (cse_v23)[2]) + (cse_v23)[3])))[3];
  workgroupBarrier();
  if (i32(threadIdx.x) < 16i) {
    let v__2 : i32 = (cse_v14 + 64i);
    let v__3 : i32 = (cse_v14 + 128i);
    let v__4 : i32 = (cse_v14 + 192i);
    let v__5 : i32 = (cse_v14 + 256i);
    let v__6 : i32 = (cse_v14 + 320i);
    let v__7 : i32 = (cse_v14 + 384i);
    let v__8 : i32 = (cse_v14 + 448i);
    v_5[cse_v14 + 0] = (((vec4<f32>(v_4[cse_v14 + 0], v_4[cse_v14 + 1], v_4[cse_v14 + 2], v_4[cse_v14 + 3]) + vec4<f32>(v_4[v__2 + 0], v_4[v__2 + 1], v_4[v__2 + 2], v_4[v__2 + 3])) + (vec4<f32>(v_4[v__3 + 0], v_4[v__3 + 1], v_4[v__3 + 2], v_4[v__3 + 3]) + vec4<f32>(v_4[v__4 + 0], v_4[v__4 + 1], v_4[v__4 + 2], v_4[v__4 + 3]))) + ((vec4<f32>(v_4[v__5 + 0], v_4[v__5 + 1], v_4[v__5 + 2], v_4[v__5 + 3]) + vec4<f32>(v_4[v__6 + 0], v_4[v__6 + 1], v_4[v__6 + 2], v_4[v__6 + 3])) + (vec4<f32>(v_4[v__7 + 0], v_4[v__7 + 1], v_4[v__7 + 2], v_4[v__7 + 3]) + vec4<f32>(v_4[v__8 + 0], v_4[v__8 + 1], v_4[v__8 + 2], v_4[v__8 + 3]))))[0];
    v_5[cse_v14 + 1] = (((vec4<f32>(v_4[cse_v14 + 0], v_4[cse_v14 + 1], v_4[cse_v14 + 2], v_4[cse_v14 + 3]) + vec4<f32>(v_4[v__2 + 0], v_4[v__2 + 1], v_4[v__2 + 2], v_4[v__2 + 3])) + (vec4<f32>(v_4[v__3 + 0], v_4[v__3 + 1], v_4[v__3 + 2], v_4[v__3 + 3]) + vec4<f32>(v_4[v__4 + 0], v_4[v__4 + 1], v_4[v__4 + 2], v_4[v__4 + 3]))) + ((vec4<f32>(v_4[v__5 + 0], v_4[v__5 + 1], v_4[v__5 + 2], v_4[v__5 + 3]) + vec4<f32>(v_4[v__6 + 0], v_4[v__6 + 1], v_4[v__6 + 2], v_4[v__6 + 3])) + (vec4<f32>(v_4[v__7 + 0], v_4[v__7 + 1], v_4[v__7 + 2], v_4[v__7 + 3]) + vec4<f32>(v_4[v__8 + 0], v_4[v__8 + 1], v_4[v__8 + 2], v_4[v__8 + 3]))))[1];
    v_5[cse_v14 + 2] = (((vec4<f32>(v_4[cse_v14 + 0], v_4[cse_v14 + 1], v_4[cse_v14 + 2], v_4[cse_v14 + 3]) + vec4<f32>(v_4[v__2 + 0], v_4[v__2 + 1], v_4[v__2 + 2], v_4[v__2 + 3])) + (vec4<f32>(v_4[v__3 + 0], v_4[v__3 + 1], v_4[v__3 + 2], v_4[v__3 + 3]) + vec4<f32>(v_4[v__4 + 0], v_4[v__4 + 1], v_4[v__4 + 2], v_4[v__4 + 3]))) + ((vec4<f32>(v_4[v__5 + 0], v_4[v__5 + 1], v_4[v__5 + 2], v_4[v__5 + 3]) + vec4<f32>(v_4[v__6 + 0], v_4[v__6 + 1], v_4[v__6 + 2], v_4[v__6 + 3])) + (vec4<f32>(v_4[v__7 + 0], v_4[v__7 + 1], v_4[v__7 + 2], v_4[v__7 + 3]) + vec4<f32>(v_4[v__8 + 0], v_4[v__8 + 1], v_4[v__8 + 2], v_4[v__8 + 3]))))[2];
    v_5[cse_v14 + 3] = (((vec4<f32>(v_4[cse_v14 + 0], v_4[cse_v14 + 1], v_4[cse_v14 + 2], v_4[cse_v14 + 3]) + vec4<f32>(v_4[v__2 + 0], v_4[v__2 + 1], v_4[v__2 + 2], v_4[v__2 + 3])) + (vec4<f32>(v_4[v__3 + 0], v_4[v__3 + 1], v_4[v__3 + 2], v_4[v__3 + 3]) + vec4<f32>(v_4[v__4 + 0], v_4[v__4 + 1], v_4[v__4 + 2], v_4[v__4 + 3]))) + ((vec4<f32>(v_4[v__5 + 0], v_4[v__5 + 1], v_4[v__5 + 2], v_4[v__5 + 3]) + vec4<f32>(v_4[v__6 + 0], v_4[v__6 + 1], v_4[v__6 + 2], v_4[v__6 + 3])) + (vec4<f32>(v_4[v__7 + 0], v_4[v__7 + 1], v_4[v__7 + 2], v_4[v__7 + 3]) + vec4<f32>(v_4[v__8 + 0], v_4[v__8 + 1], v_4[v__8 + 2], v_4[v__8 + 3]))))[3];
  }
  workgroupBarrier();
  let v_30 : vec4<f32> = ((((vec4<f32>(v_5[0i + 0], v_5[0i + 1], v_5[0i + 2], v_5[0i + 3]) + vec4<f32>(v_5[4i + 0], v_5[4i + 1], v_5[4i + 2], v_5[4i + 3])) + (vec4<f32>(v_5[8i + 0], v_5[8i + 1], v_5[8i + 2], v_5[8i + 3]) + vec4<f32>(v_5[12i + 0], v_5[12i + 1], v_5[12i + 2], v_5[12i + 3]))) + ((vec4<f32>(v_5[16i + 0], v_5[16i + 1], v_5[16i + 2], v_5[16i + 3]) + vec4<f32>(v_5[20i + 0], v_5[20i + 1], v_5[20i + 2], v_5[20i + 3])) + (vec4<f32>(v_5[24i + 0], v_5[24i + 1], v_5[24i + 2], v_5[24i + 3]) + vec4<f32>(v_5[28i + 0], v_5[28i + 1], v_5[28i + 2], v_5[28i + 3])))) + (((vec4<f32>(v_5[32i + 0], v_5[32i + 1], v_5[32i + 2], v_5[32i + 3]) + vec4<f32>(v_5[36i + 0], v_5[36i + 1], v_5[36i + 2], v_5[36i + 3])) + (vec4<f32>(v_5[40i + 0], v_5[40i + 1], v_5[40i + 2], v_5[40i + 3]) + vec4<f32>(v_5[44i + 0], v_5[44i + 1], v_5[44i + 2], v_5[44i + 3]))) + ((vec4<f32>(v_5[48i + 0], v_5[48i + 1], v_5[48i + 2], v_5[48i + 3]) + vec4<f32>(v_5[52i + 0], v_5[52i + 1], v_5[52i + 2], v_5[52i + 3])) + (vec4<f32>(v_5[56i + 0], v_5[56i + 1], v_5[56i + 2], v_5[56i + 3]) + vec4<f32>(v_5[60i + 0], v_5[60i + 1], v_5[60i + 2], v_5[60i + 3])))));
  v_6[0i] = (1.000000e+00f / sqrt((((v_30)[0] / 1.536000e+03f) + 1.000000e-06f)));
  let v_31 : f32 = v_6[0i];
  v_7[0i] = (1.000000e+00f / sqrt(((((max(fma(v_31, fma(v_31, (v_30)[3], (2.000000e+00f * (v_30)[2])), (v_30)[1]), 0.000000e+00f) * v_29) * v_29) / 1.536000e+03f) + 1.000000e-06f)));
  let v_32 : f32 = v_7[0i];
  let cse_v32 : vec4<f32> = (fma(cse_v11, vec4<f32>(v_31, v_31, v_31, v_31), v_20) * vec4<f32>(v_29, v_29, v_29, v_29));
  let cse_v33 : vec4<f32> = (fma(cse_v12, vec4<f32>(v_31, v_31, v_31, v_31), v_21) * vec4<f32>(v_29, v_29, v_29, v_29));
  let cse_v34 : vec4<f32> = (fma(cse_v13, vec4<f32>(v_31, v_31, v_31, v_31), v_22) * vec4<f32>(v_29, v_29, v_29, v_29));
  if (v__1 == 0i) {
    out_ptr[i32(threadIdx.x)] = cse_v32;
    out_ptr[cse_v3] = cse_v33;
    out_ptr[cse_v4] = cse_v34;
  }
  let cse_v37 : vec4<f32> = ((cse_v32 * vec4<f32>(v_32, v_32, v_32, v_32)) * v_26);
  v_4[i32(threadIdx.x)] = max(max(max((cse_v37)[0], ((cse_v37)[0] * -1.000000e+00f)), max((cse_v37)[1], ((cse_v37)[1] * -1.000000e+00f))), max(max((cse_v37)[2], ((cse_v37)[2] * -1.000000e+00f)), max((cse_v37)[3], ((cse_v37)[3] * -1.000000e+00f))));
  let cse_v38 : vec4<f32> = ((cse_v33 * vec4<f32>(v_32, v_32, v_32, v_32)) * v_27);
  v_4[cse_v3] = max(max(max((cse_v38)[0], ((cse_v38)[0] * -1.000000e+00f)), max((cse_v38)[1], ((cse_v38)[1] * -1.000000e+00f))), max(max((cse_v38)[2], ((cse_v38)[2] * -1.000000e+00f)), max((cse_v38)[3], ((cse_v38)[3] * -1.000000e+00f))));
  let cse_v39 : vec4<f32> = ((cse_v34 * vec4<f32>(v_32, v_32, v_32, v_32)) * v_28);
  v_4[cse_v4] = max(max(max((cse_v39)[0], ((cse_v39)[0] * -1.000000e+00f)), max((cse_v39)[1], ((cse_v39)[1] * -1.000000e+00f))), max(max((cse_v39)[2], ((cse_v39)[2] * -1.000000e+00f)), max((cse_v39)[3], ((cse_v39)[3] * -1.000000e+00f))));
  workgroupBarrier();
  let cse_v15 : i32 = (i32(threadIdx.x)>>3u);
  let cse_v24 : i32 = (cse_v15 * 8i);
  let v_33 : f32 = max(max(max(max(max(max(max(v_4[cse_v24], v_4[(cse_v24 + 1i)]), v_4[(cse_v24 + 2i)]), v_4[(cse_v24 + 3i)]), v_4[(cse_v24 + 4i)]), v_4[(cse_v24 + 5i)]), v_4[(cse_v24 + 6i)]), v_4[(cse_v24 + 7i)]);
  let cse_v16 : i32 = (i32(threadIdx.x) & 7i);
  let cse_v27 : f32 = select(0.000000e+00f, (1.270000e+02f / max(v_33, 1.000000e-30f)), (1.000000e-30f < v_33));
  let cse_v28 : i32 = ((cse_v16 * 49i) + cse_v15);
  v_8[cse_v28] = ((((0u | ((u32(i32(floor(fma((cse_v37)[0], cse_v27, 5.000000e-01f)))) & 255u)<<0u)) | ((u32(i32(floor(fma((cse_v37)[2], cse_v27, 5.000000e-01f)))) & 255u)<<8u)) | ((u32(i32(floor(fma((cse_v37)[1], cse_v27, 5.000000e-01f)))) & 255u)<<16u)) | ((u32(i32(floor(fma((cse_v37)[3], cse_v27, 5.000000e-01f)))) & 255u)<<24u));
  if (cse_v16 == 0i) {
    v_5[cse_v15] = select(0.000000e+00f, (v_33 * 7.874016e-03f), (1.000000e-30f < v_33));
  }
  let v_34 : f32 = max(max(max(max(max(max(max(v_4[(cse_v24 + 128i)], v_4[(cse_v24 + 129i)]), v_4[(cse_v24 + 130i)]), v_4[(cse_v24 + 131i)]), v_4[(cse_v24 + 132i)]), v_4[(cse_v24 + 133i)]), v_4[(cse_v24 + 134i)]), v_4[(cse_v24 + 135i)]);
  let cse_v29 : f32 = select(0.000000e+00f, (1.270000e+02f / max(v_34, 1.000000e-30f)), (1.000000e-30f < v_34));
  v_8[(cse_v28 + 16i)] = ((((0u | ((u32(i32(floor(fma((cse_v38)[0], cse_v29, 5.000000e-01f)))) & 255u)<<0u)) | ((u32(i32(floor(fma((cse_v38)[2], cse_v29, 5.000000e-01f)))) & 255u)<<8u)) | ((u32(i32(floor(fma((cse_v38)[1], cse_v29, 5.000000e-01f)))) & 255u)<<16u)) | ((u32(i32(floor(fma((cse_v38)[3], cse_v29, 5.000000e-01f)))) & 255u)<<24u));
  if (cse_v16 == 0i) {
    v_5[(cse_v15 + 16i)] = select(0.000000e+00f, (v_34 * 7.874016e-03f), (1.000000e-30f < v_34));
  }
  let v_35 : f32 = max(max(max(max(max(max(max(v_4[(cse_v24 + 256i)], v_4[(cse_v24 + 257i)]), v_4[(cse_v24 + 258i)]), v_4[(cse_v24 + 259i)]), v_4[(cse_v24 + 260i)]), v_4[(cse_v24 + 261i)]), v_4[(cse_v24 + 262i)]), v_4[(cse_v24 + 263i)]);
  let cse_v30 : f32 = select(0.000000e+00f, (1.270000e+02f / max(v_35, 1.000000e-30f)), (1.000000e-30f < v_35));
  v_8[(cse_v28 + 32i)] = ((((0u | ((u32(i32(floor(fma((cse_v39)[0], cse_v30, 5.000000e-01f)))) & 255u)<<0u)) | ((u32(i32(floor(fma((cse_v39)[2], cse_v30, 5.000000e-01f)))) & 255u)<<8u)) | ((u32(i32(floor(fma((cse_v39)[1], cse_v30, 5.000000e-01f)))) & 255u)<<16u)) | ((u32(i32(floor(fma((cse_v39)[3], cse_v30, 5.000000e-01f)))) & 255u)<<24u));
  if (cse_v16 == 0i) {
    v_5[(cse_v15 + 32i)] = select(0.000000e+00f, (v_35 * 7.874016e-03f), (1.000000e-30f < v_35));
  }
  workgroupBarrier();
  let v_36 : u32 = v_8[cse_v2];
  let v_37 : u32 = v_8[(cse_v2 + 49i)];
  let v_38 : u32 = v_8[(cse_v2 + 98i)];
  let v_39 : u32 = v_8[(cse_v2 + 147i)];
  let v_40 : u32 = v_8[(cse_v2 + 196i)];
  let v_41 : u32 = v_8[(cse_v2 + 245i)];
  let v_42 : u32 = v_8[(cse_v2 + 294i)];
  let v_43 : u32 = v_8[(cse_v2 + 343i)];
  let v_44 : f32 = v_5[cse_v2];
  v_9[0i] = 0i;
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_36, 16843009u));
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_37, 16843009u));
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_38, 16843009u));
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_39, 16843009u));
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_40, 16843009u));
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_41, 16843009u));
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_42, 16843009u));
  v_9[0i] = (v_9[0i] + dot4I8Packed(v_43, 16843009u));
  let v_45 : i32 = (v_9[0i] * -7i);
  v_10[0i] = ((v_36 & 65535u) | (v_37<<16u));
  v_10[1i] = ((v_36>>16u) | (v_37 & 4294901760u));
  v_10[2i] = ((v_38 & 65535u) | (v_39<<16u));
  v_10[3i] = ((v_38>>16u) | (v_39 & 4294901760u));
  v_10[4i] = ((v_40 & 65535u) | (v_41<<16u));
  v_10[5i] = ((v_40>>16u) | (v_41 & 4294901760u));
  v_10[6i] = ((v_42 & 65535u) | (v_43<<16u));
  v_10[7i] = ((v_42>>16u) | (v_43 & 4294901760u));
  let cse_v25 : i32 = (cse_v2 + 16i);
  let v_46 : u32 = v_8[cse_v25];
  let v_47 : u32 = v_8[(cse_v2 + 65i)];
  let v_48 : u32 = v_8[(cse_v2 + 114i)];
  let v_49 : u32 = v_8[(cse_v2 + 163i)];
  let v_50 : u32 = v_8[(cse_v2 + 212i)];
  let v_51 : u32 = v_8[(cse_v2 + 261i)];
  let v_52 : u32 = v_8[(cse_v2 + 310i)];
  let v_53 : u32 = v_8[(cse_v2 + 359i)];
  let v_54 : f32 = v_5[cse_v25];
  v_11[0i] = 0i;
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_46, 16843009u));
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_47, 16843009u));
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_48, 16843009u));
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_49, 16843009u));
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_50, 16843009u));
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_51, 16843009u));
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_52, 16843009u));
  v_11[0i] = (v_11[0i] + dot4I8Packed(v_53, 16843009u));
  let v_55 : i32 = (v_11[0i] * -7i);
  v_10[8i] = ((v_46 & 65535u) | (v_47<<16u));
  v_10[9i] = ((v_46>>16u) | (v_47 & 4294901760u));
  v_10[10i] = ((v_48 & 65535u) | (v_49<<16u));
  v_10[11i] = ((v_48>>16u) | (v_49 & 4294901760u));
  v_10[12i] = ((v_50 & 65535u) | (v_51<<16u));
  v_10[13i] = ((v_50>>16u) | (v_51 & 4294901760u));
  v_10[14i] = ((v_52 & 65535u) | (v_53<<16u));
  v_10[15i] = ((v_52>>16u) | (v_53 & 4294901760u));
  let cse_v26 : i32 = (cse_v2 + 32i);
  let v_56 : u32 = v_8[cse_v26];
  let v_57 : u32 = v_8[(cse_v2 + 81i)];
  let v_58 : u32 = v_8[(cse_v2 + 130i)];
  let v_59 : u32 = v_8[(cse_v2 + 179i)];
  let v_60 : u32 = v_8[(cse_v2 + 228i)];
  let v_61 : u32 = v_8[(cse_v2 + 277i)];
  let v_62 : u32 = v_8[(cse_v2 + 326i)];
  let v_63 : u32 = v_8[(cse_v2 + 375i)];
  let v_64 : f32 = v_5[cse_v26];
  v_12[0i] = 0i;
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_56, 16843009u));
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_57, 16843009u));
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_58, 16843009u));
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_59, 16843009u));
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_60, 16843009u));
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_61, 16843009u));
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_62, 16843009u));
  v_12[0i] = (v_12[0i] + dot4I8Packed(v_63, 16843009u));
  let v_65 : i32 = (v_12[0i] * -7i);
  v_10[16i] = ((v_56 & 65535u) | (v_57<<16u));
  v_10[17i] = ((v_56>>16u) | (v_57 & 4294901760u));
  v_10[18i] = ((v_58 & 65535u) | (v_59<<16u));
  v_10[19i] = ((v_58>>16u) | (v_59 & 4294901760u));
  v_10[20i] = ((v_60 & 65535u) | (v_61<<16u));
  v_10[21i] = ((v_60>>16u) | (v_61 & 4294901760u));
  v_10[22i] = ((v_62 & 65535u) | (v_63<<16u));
  v_10[23i] = ((v_62>>16u) | (v_63 & 4294901760u));
  let v_66 : vec4<u32> = v[0i];
  let v_67 : vec4<u32> = v[1i];
  let v_68 : vec4<u32> = v[2i];
  let v_69 : f32 = v_1[0i];
  let v_70 : f32 = v_2[0i];
  let v_71 : f32 = v_3[0i];
  v_13[0i] = 0.000000e+00f;
  v_14[0i] = v_45;
  v_14[0i] = (v_14[0i] + dot4I8Packed(((v_66)[0] & 252645135u), v_10[0i]));
  v_14[0i] = (v_14[0i] + dot4I8Packed((((v_66)[0]>>4u) & 252645135u), v_10[1i]));
  v_14[0i] = (v_14[0i] + dot4I8Packed(((v_66)[1] & 252645135u), v_10[2i]));
  v_14[0i] = (v_14[0i] + dot4I8Packed((((v_66)[1]>>4u) & 252645135u), v_10[3i]));
  v_14[0i] = (v_14[0i] + dot4I8Packed(((v_66)[2] & 252645135u), v_10[4i]));
  v_14[0i] = (v_14[0i] + dot4I8Packed((((v_66)[2]>>4u) & 252645135u), v_10[5i]));
  v_14[0i] = (v_14[0i] + dot4I8Packed(((v_66)[3] & 252645135u), v_10[6i]));
  v_14[0i] = (v_14[0i] + dot4I8Packed((((v_66)[3]>>4u) & 252645135u), v_10[7i]));
  v_13[0i] = fma((v_69 * v_44), f32(v_14[0i]), v_13[0i]);
  v_15[0i] = v_55;
  v_15[0i] = (v_15[0i] + dot4I8Packed(((v_67)[0] & 252645135u), v_10[8i]));
  v_15[0i] = (v_15[0i] + dot4I8Packed((((v_67)[0]>>4u) & 252645135u), v_10[9i]));
  v_15[0i] = (v_15[0i] + dot4I8Packed(((v_67)[1] & 252645135u), v_10[10i]));
  v_15[0i] = (v_15[0i] + dot4I8Packed((((v_67)[1]>>4u) & 252645135u), v_10[11i]));
  v_15[0i] = (v_15[0i] + dot4I8Packed(((v_67)[2] & 252645135u), v_10[12i]));
  v_15[0i] = (v_15[0i] + dot4I8Packed((((v_67)[2]>>4u) & 252645135u), v_10[13i]));
  v_15[0i] = (v_15[0i] + dot4I8Packed(((v_67)[3] & 252645135u), v_10[14i]));
  v_15[0i] = (v_15[0i] + dot4I8Packed((((v_67)[3]>>4u) & 252645135u), v_10[15i]));
  v_13[0i] = fma((v_70 * v_54), f32(v_15[0i]), v_13[0i]);
  v_16[0i] = v_65;
  v_16[0i] = (v_16[0i] + dot4I8Packed(((v_68)[0] & 252645135u), v_10[16i]));
  v_16[0i] = (v_16[0i] + dot4I8Packed((((v_68)[0]>>4u) & 252645135u), v_10[17i]));
  v_16[0i] = (v_16[0i] + dot4I8Packed(((v_68)[1] & 252645135u), v_10[18i]));
  v_16[0i] = (v_16[0i] + dot4I8Packed((((v_68)[1]>>4u) & 252645135u), v_10[19i]));
  v_16[0i] = (v_16[0i] + dot4I8Packed(((v_68)[2] & 252645135u), v_10[20i]));
  v_16[0i] = (v_16[0i] + dot4I8Packed((((v_68)[2]>>4u) & 252645135u), v_10[21i]));
  v_16[0i] = (v_16[0i] + dot4I8Packed(((v_68)[3] & 252645135u), v_10[22i]));
  v_16[0i] = (v_16[0i] + dot4I8Packed((((v_68)[3]>>4u) & 252645135u), v_10[23i]));
  v_13[0i] = fma((v_71 * v_64), f32(v_16[0i]), v_13[0i]);
  v_4[((cse_v1 * 17i) + cse_v2)] = v_13[0i];
  workgroupBarrier();
  if (i32(threadIdx.x) < 8i) {
    let cse_v17 : i32 = (i32(threadIdx.x) * 17i);
    let v_72 : f32 = ((((v_4[cse_v17] + v_4[(cse_v17 + 1i)]) + (v_4[(cse_v17 + 2i)] + v_4[(cse_v17 + 3i)])) + ((v_4[(cse_v17 + 4i)] + v_4[(cse_v17 + 5i)]) + (v_4[(cse_v17 + 6i)] + v_4[(cse_v17 + 7i)]))) + (((v_4[(cse_v17 + 8i)] + v_4[(cse_v17 + 9i)]) + (v_4[(cse_v17 + 10i)] + v_4[(cse_v17 + 11i)])) + ((v_4[(cse_v17 + 12i)] + v_4[(cse_v17 + 13i)]) + (v_4[(cse_v17 + 14i)] + v_4[(cse_v17 + 15i)]))));
    y0_ptr[((v__1 * 8i) + i32(threadIdx.x))] = v_72;
  }
}


