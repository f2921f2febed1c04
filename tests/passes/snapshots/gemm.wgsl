//----------------------------------------
enable f16;

@group(0) @binding(0) var<storage, read> q_scale0_ptr : array<f16>;
@group(0) @binding(1) var<storage, read> q_weight0_ptr : array<u32>;
@group(0) @binding(2) var<storage, read> x_ptr : array<vec4<f16>>;
@group(0) @binding(3) var<storage, read_write> y_ptr : array<f32>;

struct PODArgs {
  n: i32,
  packGridDimX: u32
}
@group(0) @binding(4) var<uniform> podArgs : PODArgs;

var<workgroup> v_4 : array<vec4<f32>, 1024>;
@compute @workgroup_size(128, 1, 1)
fn snapshot_kernel(
  @builtin(workgroup_id) blockIdx : vec3<u32>,
  @builtin(num_workgroups) gridDim : vec3<u32>,
  @builtin(local_invocation_id) threadIdx : vec3<u32>
) {
  if (blockIdx.z * gridDim.x + blockIdx.x > podArgs.packGridDimX) { return; }
  let v__1 : i32 = i32(blockIdx.z * gridDim.x + blockIdx.x);
  var v : array<vec4<f32>, 16>;
  var v_1 : array<vec4<f16>, 4>;
  var v_2 : array<u32, 4>;
  var v_3 : array<f16, 4>;
  v[0i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[1i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[2i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[3i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[4i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[5i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[6i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[7i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[8i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[9i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[10i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[11i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[12i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[13i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[14i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v[15i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  let cse_v1 : i32 = (i32(blockIdx.y) * 64i);
  let cse_v2 : i32 = i32(threadIdx.x);
  let cse_v3 : u32 = u32(i32(threadIdx.x));
  let cse_v8 : i32 = podArgs.n;
  let cse_v12 : i32 = (cse_v8 - 1i);
  let cse_v13 : i32 = i32((cse_v3 % 8u));
  let cse_v18 : i32 = (cse_v1 + ((cse_v2>>3u) * 4i));
  let cse_v19 : i32 = cse_v13;
  let cse_v38 : i32 = (min(cse_v18, cse_v12) * 384i);
  v_1[0i] = x_ptr[(cse_v38 + cse_v19)];
  let cse_v39 : i32 = (min((cse_v18 + 1i), cse_v12) * 384i);
  v_1[1i] = x_ptr[(cse_v39 + cse_v19)];
  let cse_v40 : i32 = (min((cse_v18 + 2i), cse_v12) * 384i);
  v_1[2i] = x_ptr[(cse_v40 + cse_v19)];
  let cse_v41 : i32 = (min((cse_v18 + 3i), cse_v12) * 384i);
  v_1[3i] = x_ptr[(cse_v41 + cse_v19)];
  let cse_v4 : i32 = (i32(threadIdx.x)>>3u);
  let cse_v14 : i32 = ((v__1 * 12288i) + (cse_v4 * 768i));
  let cse_v20 : i32 = (cse_v13>>1u);
  let cse_v28 : i32 = (cse_v14 + cse_v20);
  v_2[0i] = q_weight0_ptr[cse_v28];
  let cse_v15 : i32 = ((v__1 * 3072i) + (cse_v4 * 192i));
  v_3[0i] = q_scale0_ptr[cse_v15];
  v_2[1i] = q_weight0_ptr[(cse_v28 + 192i)];
  v_3[1i] = q_scale0_ptr[(cse_v15 + 48i)];
  v_2[2i] = q_weight0_ptr[(cse_v28 + 384i)];
  v_3[2i] = q_scale0_ptr[(cse_v15 + 96i)];
  v_2[3i] = q_weight0_ptr[(cse_v28 + 576i)];
  v_3[3i] = q_scale0_ptr[(cse_v15 + 144i)];
  let cse_v5 : i32 = (i32(threadIdx.x)>>6u);
  let cse_v10 : i32 = (cse_v5 * 64i);
  let cse_v17 : i32 = i32((cse_v3 % 64u));
  for (var v_5 : i32 = 0i; v_5 < 48i; v_5++) {
    workgroupBarrier();
    let v_6 : vec4<f32> = vec4<f32>(v_1[0i]);
    let v_7 : vec4<f32> = vec4<f32>(v_1[1i]);
    let v_8 : vec4<f32> = vec4<f32>(v_1[2i]);
    let v_9 : vec4<f32> = vec4<f32>(v_1[3i]);
    let cse_v42 : i32 = ((cse_v13 * 64i) + i32((u32((cse_v4 ^ cse_v13)) % 16u)));
    v_4[cse_v42] = vec4<f32>((v_6)[0], (v_7)[0], (v_8)[0], (v_9)[0]);
    v_4[(cse_v42 + 16i)] = vec4<f32>((v_6)[1], (v_7)[1], (v_8)[1], (v_9)[1]);
    v_4[(cse_v42 + 32i)] = vec4<f32>((v_6)[2], (v_7)[2], (v_8)[2], (v_9)[2]);
    v_4[(cse_v42 + 48i)] = vec4<f32>((v_6)[3], (v_7)[3], (v_8)[3], (v_9)[3]);
    let v_10 : vec4<u32> = (vec4<u32>(v_2[0i], v_2[1i], v_2[2i], v_2[3i])>>vec4<u32>(u32(((cse_v13 & 1i) * 16i)), u32(((cse_v13 & 1i) * 16i)), u32(((cse_v13 & 1i) * 16i)), u32(((cse_v13 & 1i) * 16i))));
    let v_11 : vec4<f32> = vec4<f32>(vec4<f16>(v_3[0i], v_3[1i], v_3[2i], v_3[3i]));
    v_4[(cse_v42 + 512i)] = ((vec4<f32>((v_10 & vec4<u32>(15u, 15u, 15u, 15u))) - vec4<f32>(7.000000e+00f, 7.000000e+00f, 7.000000e+00f, 7.000000e+00f)) * v_11);
    v_4[(cse_v42 + 528i)] = ((vec4<f32>(((v_10>>vec4<u32>(4u, 4u, 4u, 4u)) & vec4<u32>(15u, 15u, 15u, 15u))) - vec4<f32>(7.000000e+00f, 7.000000e+00f, 7.000000e+00f, 7.000000e+00f)) * v_11);
    v_4[(cse_v42 + 544i)] = ((vec4<f32>(((v_10>>vec4<u32>(8u, 8u, 8u, 8u)) & vec4<u32>(15u, 15u, 15u, 15u))) - vec4<f32>(7.000000e+00f, 7.000000e+00f, 7.000000e+00f, 7.000000e+00f)) * v_11);
    v_4[(cse_v42 + 560i)] = ((vec4<f32>(((v_10>>vec4<u32>(12u, 12u, 12u, 12u)) & vec4<u32>(15u, 15u, 15u, 15u))) - vec4<f32>(7.000000e+00f, 7.000000e+00f, 7.000000e+00f, 7.000000e+00f)) * v_11);
    workgroupBarrier();
    let cse_v9 : i32 = min((v_5 + 1i), 47i);
    let cse_v21 : i32 = (cse_v9 * 8i);
    v_1[0i] = x_ptr[((cse_v38 + cse_v21) + cse_v19)];
    v_1[1i] = x_ptr[((cse_v39 + cse_v21) + cse_v19)];
    v_1[2i] = x_ptr[((cse_v40 + cse_v21) + cse_v19)];
    v_1[3i] = x_ptr[((cse_v41 + cse_v21) + cse_v19)];
    let cse_v29 : i32 = ((cse_v14 + (cse_v9 * 4i)) + cse_v20);
    v_2[0i] = q_weight0_ptr[cse_v29];
    let cse_v22 : i32 = (cse_v15 + cse_v9);
    v_3[0i] = q_scale0_ptr[cse_v22];
    v_2[1i] = q_weight0_ptr[(cse_v29 + 192i)];
    v_3[1i] = q_scale0_ptr[(cse_v22 + 48i)];
    v_2[2i] = q_weight0_ptr[(cse_v29 + 384i)];
    v_3[2i] = q_scale0_ptr[(cse_v22 + 96i)];
    v_2[3i] = q_weight0_ptr[(cse_v29 + 576i)];
    v_3[3i] = q_scale0_ptr[(cse_v22 + 144i)];
    for (var v_12 : i32 = 0i; v_12 < 4i; v_12++) {
      let cse_v11 : i32 = ((v_12 * 2i) + cse_v5);
      let cse_v16 : i32 = ((v_12 * 128i) + cse_v10);
      let cse_v23 : i32 = (cse_v17>>3u);
      let cse_v43 : i32 = (cse_v16 + i32((u32((cse_v23 ^ cse_v11)) % 16u)));
      let v_13 : vec4<f32> = v_4[cse_v43];
      let cse_v45 : i32 = (cse_v16 + i32((u32(((cse_v23 + 8i) ^ cse_v11)) % 16u)));
      let v_14 : vec4<f32> = v_4[cse_v45];
      let cse_v24 : i32 = (cse_v17 & 7i);
      let cse_v44 : i32 = (cse_v16 + i32((u32((cse_v24 ^ cse_v11)) % 16u)));
      let v_15 : vec4<f32> = v_4[(cse_v44 + 512i)];
      let cse_v46 : i32 = (cse_v16 + i32((u32(((cse_v24 + 8i) ^ cse_v11)) % 16u)));
      let v_16 : vec4<f32> = v_4[(cse_v46 + 512i)];
      v[0i] = fma(vec4<f32>((v_13)[0], (v_13)[0], (v_13)[0], (v_13)[0]), v_15, v[0i]);
      v[1i] = fma(vec4<f32>((v_13)[0], (v_13)[0], (v_13)[0], (v_13)[0]), v_16, v[1i]);
      v[2i] = fma(vec4<f32>((v_13)[1], (v_13)[1], (v_13)[1], (v_13)[1]), v_15, v[2i]);
      v[3i] = fma(vec4<f32>((v_13)[1], (v_13)[1], (v_13)[1], (v_13)[1]), v_16, v[3i]);
      v[4i] = fma(vec4<f32>((v_13)[2], (v_13)[2], (v_13)[2], (v_13)[2]), v_15, v[4i]);
      v[5i] = fma(vec4<f32>((v_13)[2], (v_13)[2], (v_13)[2], (v_13)[2]), v_16, v[5i]);
      v[6i] = fma(vec4<f32>((v_13)[3], (v_13)[3], (v_13)[3], (v_13)[3]), v_15, v[6i]);
      v[7i] = fma(vec4<f32>((v_13)[3], (v_13)[3], (v_13)[3], (v_13)[3]), v_16, v[7i]);
      v[8i] = fma(vec4<f32>((v_14)[0], (v_14)[0], (v_14)[0], (v_14)[0]), v_15, v[8i]);
      v[9i] = fma(vec4<f32>((v_14)[0], (v_14)[0], (v_14)[0], (v_14)[0]), v_16, v[9i]);
      v[10i] = fma(vec4<f32>((v_14)[1], (v_14)[1], (v_14)[1], (v_14)[1]), v_15, v[10i]);
      v[11i] = fma(vec4<f32>((v_14)[1], (v_14)[1], (v_14)[1], (v_14)[1]), v_16, v[11i]);
      v[12i] = fma(vec4<f32>((v_14)[2], (v_14)[2], (v_14)[2], (v_14)[2]), v_15, v[12i]);
      v[13i] = fma(vec4<f32>((v_14)[2], (v_14)[2], (v_14)[2], (v_14)[2]), v_16, v[13i]);
      v[14i] = fma(vec4<f32>((v_14)[3], (v_14)[3], (v_14)[3], (v_14)[3]), v_15, v[14i]);
      v[15i] = fma(vec4<f32>((v_14)[3], (v_14)[3], (v_14)[3], (v_14)[3]), v_16, v[15i]);
      let v_17 : vec4<f32> = v_4[(cse_v43 + 16i)];
      let v_18 : vec4<f32> = v_4[(cse_v45 + 16i)];
      let v_19 : vec4<f32> = v_4[(cse_v44 + 528i)];
      let v_20 : vec4<f32> = v_4[(cse_v46 + 528i)];
      v[0i] = fma(vec4<f32>((v_17)[0], (v_17)[0], (v_17)[0], (v_17)[0]), v_19, v[0i]);
      v[1i] = fma(vec4<f32>((v_17)[0], (v_17)[0], (v_17)[0], (v_17)[0]), v_20, v[1i]);
      v[2i] = fma(vec4<f32>((v_17)[1], (v_17)[1], (v_17)[1], (v_17)[1]), v_19, v[2i]);
      v[3i] = fma(vec4<f32>((v_17)[1], (v_17)[1], (v_17)[1], (v_17)[1]), v_20, v[3i]);
      v[4i] = fma(vec4<f32>((v_17)[2], (v_17)[2], (v_17)[2], (v_17)[2]), v_19, v[4i]);
      v[5i] = fma(vec4<f32>((v_17)[2], (v_17)[2], (v_17)[2], (v_17)[2]), v_20, v[5i]);
      v[6i] = fma(vec4<f32>((v_17)[3], (v_17)[3], (v_17)[3], (v_17)[3]), v_19, v[6i]);
      v[7i] = fma(vec4<f32>((v_17)[3], (v_17)[3], (v_17)[3], (v_17)[3]), v_20, v[7i]);
      v[8i] = fma(vec4<f32>((v_18)[0], (v_18)[0], (v_18)[0], (v_18)[0]), v_19, v[8i]);
      v[9i] = fma(vec4<f32>((v_18)[0], (v_18)[0], (v_18)[0], (v_18)[0]), v_20, v[9i]);
      v[10i] = fma(vec4<f32>((v_18)[1], (v_18)[1], (v_18)[1], (v_18)[1]), v_19, v[10i]);
      v[11i] = fma(vec4<f32>((v_18)[1], (v_18)[1], (v_18)[1], (v_18)[1]), v_20, v[11i]);
      v[12i] = fma(vec4<f32>((v_18)[2], (v_18)[2], (v_18)[2], (v_18)[2]), v_19, v[12i]);
      v[13i] = fma(vec4<f32>((v_18)[2], (v_18)[2], (v_18)[2], (v_18)[2]), v_20, v[13i]);
      v[14i] = fma(vec4<f32>((v_18)[3], (v_18)[3], (v_18)[3], (v_18)[3]), v_19, v[14i]);
      v[15i] = fma(vec4<f32>((v_18)[3], (v_18)[3], (v_18)[3], (v_18)[3]), v_20, v[15i]);
      let v_21 : vec4<f32> = v_4[(cse_v43 + 32i)];
      let v_22 : vec4<f32> = v_4[(cse_v45 + 32i)];
      let v_23 : vec4<f32> = v_4[(cse_v44 + 544i)];
      let v_24 : vec4<f32> = v_4[(cse_v46 + 544i)];
      v[0i] = fma(vec4<f32>((v_21)[0], (v_21)[0], (v_21)[0], (v_21)[0]), v_23, v[0i]);
      v[1i] = fma(vec4<f32>((v_21)[0], (v_21)[0], (v_21)[0], (v_21)[0]), v_24, v[1i]);
      v[2i] = fma(vec4<f32>((v_21)[1], (v_21)[1], (v_21)[1], (v_21)[1]), v_23, v[2i]);
      v[3i] = fma(vec4<f32>((v_21)[1], (v_21)[1], (v_21)[1], (v_21)[1]), v_24, v[3i]);
      v[4i] = fma(vec4<f32>((v_21)[2], (v_21)[2], (v_21)[2], (v_21)[2]), v_23, v[4i]);
      v[5i] = fma(vec4<f32>((v_21)[2], (v_21)[2], (v_21)[2], (v_21)[2]), v_24, v[5i]);
      v[6i] = fma(vec4<f32>((v_21)[3], (v_21)[3], (v_21)[3], (v_21)[3]), v_23, v[6i]);
      v[7i] = fma(vec4<f32>((v_21)[3], (v_21)[3], (v_21)[3], (v_21)[3]), v_24, v[7i]);
      v[8i] = fma(vec4<f32>((v_22)[0], (v_22)[0], (v_22)[0], (v_22)[0]), v_23, v[8i]);
      v[9i] = fma(vec4<f32>((v_22)[0], (v_22)[0], (v_22)[0], (v_22)[0]), v_24, v[9i]);
      v[10i] = fma(vec4<f32>((v_22)[1], (v_22)[1], (v_22)[1], (v_22)[1]), v_23, v[10i]);
      v[11i] = fma(vec4<f32>((v_22)[1], (v_22)[1], (v_22)[1], (v_22)[1]), v_24, v[11i]);
      v[12i] = fma(vec4<f32>((v_22)[2], (v_22)[2], (v_22)[2], (v_22)[2]), v_23, v[12i]);
      v[13i] = fma(vec4<f32>((v_22)[2], (v_22)[2], (v_22)[2], (v_22)[2]), v_24, v[13i]);
      v[14i] = fma(vec4<f32>((v_22)[3], (v_22)[3], (v_22)[3], (v_22)[3]), v_23, v[14i]);
      v[15i] = fma(vec4<f32>((v_22)[3], (v_22)[3], (v_22)[3], (v_22)[3]), v_24, v[15i]);
      let v_25 : vec4<f32> = v_4[(cse_v43 + 48i)];
      let v_26 : vec4<f32> = v_4[(cse_v45 + 48i)];
      let v_27 : vec4<f32> = v_4[(cse_v44 + 560i)];
      let v_28 : vec4<f32> = v_4[(cse_v46 + 560i)];
      v[0i] = fma(vec4<f32>((v_25)[0], (v_25)[0], (v_25)[0], (v_25)[0]), v_27, v[0i]);
      v[1i] = fma(vec4<f32>((v_25)[0], (v_25)[0], (v_25)[0], (v_25)[0]), v_28, v[1i]);
      v[2i] = fma(vec4<f32>((v_25)[1], (v_25)[1], (v_25)[1], (v_25)[1]), v_27, v[2i]);
      v[3i] = fma(vec4<f32>((v_25)[1], (v_25)[1], (v_25)[1], (v_25)[1]), v_28, v[3i]);
      v[4i] = fma(vec4<f32>((v_25)[2], (v_25)[2], (v_25)[2], (v_25)[2]), v_27, v[4i]);
      v[5i] = fma(vec4<f32>((v_25)[2], (v_25)[2], (v_25)[2], (v_25)[2]), v_28, v[5i]);
      v[6i] = fma(vec4<f32>((v_25)[3], (v_25)[3], (v_25)[3], (v_25)[3]), v_27, v[6i]);
      v[7i] = fma(vec4<f32>((v_25)[3], (v_25)[3], (v_25)[3], (v_25)[3]), v_28, v[7i]);
      v[8i] = fma(vec4<f32>((v_26)[0], (v_26)[0], (v_26)[0], (v_26)[0]), v_27, v[8i]);
      v[9i] = fma(vec4<f32>((v_26)[0], (v_26)[0], (v_26)[0], (v_26)[0]), v_28, v[9i]);
      v[10i] = fma(vec4<f32>((v_26)[1], (v_26)[1], (v_26)[1], (v_26)[1]), v_27, v[10i]);
      v[11i] = fma(vec4<f32>((v_26)[1], (v_26)[1], (v_26)[1], (v_26)[1]), v_28, v[11i]);
      v[12i] = fma(vec4<f32>((v_26)[2], (v_26)[2], (v_26)[2], (v_26)[2]), v_27, v[12i]);
      v[13i] = fma(vec4<f32>((v_26)[2], (v_26)[2], (v_26)[2], (v_26)[2]), v_28, v[13i]);
      v[14i] = fma(vec4<f32>((v_26)[3], (v_26)[3], (v_26)[3], (v_26)[3]), v_27, v[14i]);
      v[15i] = fma(vec4<f32>((v_26)[3], (v_26)[3], (v_26)[3], (v_26)[3]), v_28, v[15i]);
    }
  }
  for (var v_29 : i32 = 0i; v_29 < 2i; v_29++) {
    workgroupBarrier();
    let cse_v25 : i32 = (cse_v10 + cse_v17);
    let cse_v30 : i32 = (cse_v25 + 128i);
    let cse_v31 : i32 = (cse_v25 + 256i);
    let cse_v32 : i32 = (cse_v25 + 384i);
    let cse_v33 : i32 = (cse_v25 + 512i);
    let cse_v34 : i32 = (cse_v25 + 640i);
    let cse_v35 : i32 = (cse_v25 + 768i);
    let cse_v36 : i32 = (cse_v25 + 896i);
    if (v_29 == 0i) {
      v_4[cse_v25] = v[0i];
      v_4[cse_v30] = v[1i];
      v_4[cse_v31] = v[2i];
      v_4[cse_v32] = v[3i];
      v_4[cse_v33] = v[4i];
      v_4[cse_v34] = v[5i];
      v_4[cse_v35] = v[6i];
      v_4[cse_v36] = v[7i];
    }
    if (v_29 == 1i) {
      v_4[cse_v25] = v[8i];
      v_4[cse_v30] = v[9i];
      v_4[cse_v31] = v[10i];
      v_4[cse_v32] = v[11i];
      v_4[cse_v33] = v[12i];
      v_4[cse_v34] = v[13i];
      v_4[cse_v35] = v[14i];
      v_4[cse_v36] = v[15i];
    }
    workgroupBarrier();
    for (var v_30 : i32 = 0i; v_30 < 4i; v_30++) {
      let cse_v26 : i32 = (((v_30 * 256i) + (cse_v5 * 128i)) + cse_v17);
      let v_31 : vec4<f32> = (v_4[cse_v26] + v_4[(cse_v26 + 64i)]);
      let cse_v6 : i32 = v_29;
      let cse_v7 : i32 = v_30;
      let cse_v27 : i32 = cse_v17;
      let cse_v37 : i32 = (cse_v27>>3u);
      if ((((cse_v1 + (cse_v6 * 32i)) + (cse_v37 * 4i)) + cse_v7) < cse_v8) {
        let cse_v47 : i32 = (((((((i32(blockIdx.y) * 163840i) + (cse_v6 * 81920i)) + (cse_v37 * 10240i)) + (cse_v7 * 2560i)) + (v__1 * 64i)) + ((cse_v2>>6u) * 32i)) + ((cse_v27 & 7i) * 4i));
        y_ptr[cse_v47] = (v_31)[0];
        y_ptr[(cse_v47 + 1i)] = (v_31)[1];
        y_ptr[(cse_v47 + 2i)] = (v_31)[2];
        y_ptr[(cse_v47 + 3i)] = (v_31)[3];
      }
    }
  }
}


