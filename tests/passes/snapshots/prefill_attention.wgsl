//----------------------------------------
enable f16;

@group(0) @binding(0) var<storage, read> key_ptr : array<vec4<f16>>;
@group(0) @binding(1) var<storage, read_write> out_ptr : array<vec4<f16>>;
@group(0) @binding(2) var<storage, read> positions_ptr : array<i32>;
@group(0) @binding(3) var<storage, read> q_ptr : array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> value_ptr : array<vec4<f16>>;

struct PODArgs {
  n: i32,
  packGridDimX: u32
}
@group(0) @binding(5) var<uniform> podArgs : PODArgs;

var<workgroup> v_14 : array<vec4<f32>, 256>;
var<workgroup> v_15 : array<vec4<f32>, 512>;
var<workgroup> v_16 : array<f32, 512>;
var<workgroup> v_17 : array<vec4<f32>, 512>;
var<workgroup> v_18 : array<f32, 32>;
@compute @workgroup_size(256, 1, 1)
fn snapshot_kernel(
  @builtin(workgroup_id) blockIdx : vec3<u32>,
  @builtin(num_workgroups) gridDim : vec3<u32>,
  @builtin(local_invocation_id) threadIdx : vec3<u32>
) {
  if (blockIdx.z * gridDim.x + blockIdx.x > podArgs.packGridDimX) { return; }
  let v__1 : i32 = i32(blockIdx.z * gridDim.x + blockIdx.x);
  var v : array<i32, 1>;
  var v_1 : array<i32, 1>;
  var v_2 : array<i32, 1>;
  var v_3 : array<f32, 1>;
  var v_4 : array<f32, 1>;
  var v_5 : array<f32, 1>;
  var v_6 : array<f32, 1>;
  var v_7 : array<vec4<f32>, 8>;
  var v_8 : array<i32, 1>;
  var v_9 : array<vec4<f32>, 1>;
  var v_10 : array<i32, 1>;
  var v_11 : array<vec4<f16>, 2>;
  var v_12 : array<i32, 1>;
  var v_13 : array<vec4<f32>, 2>;
  var v_19 : array<vec4<f16>, 4>;
  var v_20 : array<i32, 1>;
  var v_21 : array<i32, 1>;
  var v_22 : array<i32, 1>;
  var v_23 : array<i32, 1>;
  var v_24 : array<i32, 1>;
  var v_25 : array<i32, 1>;
  var v_26 : array<i32, 1>;
  var v_27 : array<i32, 1>;
  var v_28 : array<i32, 1>;
  var v_29 : array<i32, 1>;
  var v_30 : array<i32, 1>;
  var v_31 : array<i32, 1>;
  var v_32 : array<i32, 1>;
  var v_33 : array<i32, 1>;
  var v_34 : array<i32, 1>;
  var v_35 : array<i32, 1>;
  var v_36 : array<f32, 1>;
  var v_37 : array<f32, 1>;
  var v_38 : array<f32, 1>;
  var v_39 : array<f32, 1>;
  var v_40 : array<i32, 1>;
  var v_41 : array<i32, 1>;
  var v_42 : array<i32, 1>;
  var v_43 : array<i32, 1>;
  var v_44 : array<vec4<f32>, 4>;
  var v_45 : array<i32, 1>;
  var v_46 : array<i32, 1>;
  var v_47 : array<i32, 1>;
  var v_48 : array<i32, 1>;
  var v_49 : array<i32, 1>;
  var v_50 : array<i32, 1>;
  var v_51 : array<i32, 1>;
  var v_52 : array<i32, 1>;
  var v_53 : array<i32, 1>;
  var v_54 : array<i32, 1>;
  var v_55 : array<i32, 1>;
  var v_56 : array<i32, 1>;
  let cse_v1 : i32 = podArgs.n;
  v[0i] = (positions_ptr[2i] - cse_v1);
  let cse_v2 : i32 = (i32(blockIdx.y) * 4i);
  v_1[0i] = max(((cse_v2 + v[0i]) - 511i), 0i);
  v_2[0i] = min(((cse_v2 + v[0i]) + 4i), positions_ptr[2i]);
  v_3[0i] = -3.000000e+38f;
  v_4[0i] = -3.000000e+38f;
  v_5[0i] = 0.000000e+00f;
  v_6[0i] = 0.000000e+00f;
  v_7[0i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v_7[1i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v_7[2i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v_7[3i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v_7[4i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v_7[5i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v_7[6i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  v_7[7i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
  let cse_v3 : i32 = i32(threadIdx.x);
  let cse_v9 : i32 = (cse_v3>>6u);
  let cse_v36 : i32 = min((cse_v2 + cse_v9), (cse_v1 - 1i));
  v_8[0i] = cse_v36;
  let cse_v4 : u32 = u32(i32(threadIdx.x));
  let cse_v21 : i32 = i32((cse_v4 % 8u));
  let cse_v30 : i32 = (((cse_v3 & 63i)>>3u) * 64i);
  let cse_v31 : i32 = cse_v21;
  v_9[0i] = q_ptr[(((v_8[0i] * 512i) + cse_v30) + cse_v31)];
  let cse_v5 : i32 = (i32(threadIdx.x)>>3u);
  v_10[0i] = (min((cse_v5 + v_1[0i]), (v_2[0i] - 1i)) & 1023i);
  v_11[0i] = key_ptr[((v_10[0i] * 64i) + cse_v21)];
  v_12[0i] = (min(((cse_v5 + v_1[0i]) + 32i), (v_2[0i] - 1i)) & 1023i);
  let cse_v32 : i32 = i32((u32((i32(threadIdx.x) + 256i)) % 8u));
  v_11[1i] = key_ptr[((v_12[0i] * 64i) + cse_v32)];
  let cse_v7 : i32 = (i32(threadIdx.x)>>6u);
  let cse_v11 : u32 = u32(cse_v5);
  let cse_v13 : i32 = (cse_v7 + 4i);
  let cse_v14 : i32 = (cse_v7 + 8i);
  let cse_v15 : i32 = (cse_v7 + 12i);
  let cse_v16 : i32 = (cse_v7 + 16i);
  let cse_v17 : i32 = (cse_v7 + 20i);
  let cse_v18 : i32 = (cse_v7 + 24i);
  let cse_v19 : i32 = (cse_v7 + 28i);
  let cse_v24 : i32 = i32((cse_v4 % 64u));
  let cse_v33 : i32 = i32((u32((i32(threadIdx.x)>>5u)) % 2u));
  let cse_v34 : i32 = i32((cse_v11 % 4u));
  let cse_v37 : i32 = (cse_v33 * 8i);
  let cse_v40 : i32 = ((cse_v7 * 64i) + (cse_v34 * 16i));
  let cse_v41 : i32 = ((cse_v40 + cse_v37) + cse_v21);
  let cse_v43 : i32 = (cse_v41 + 256i);
  for (var v_57 : i32 = 0i; v_57 < (((v_2[0i] + 63i) - v_1[0i])>>6u); v_57++) {
    v_20[0i] = ((v_57 * 64i) + v_1[0i]);
    v_13[0i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
    v_13[1i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
    let cse_v38 : i32 = ((cse_v7 * 4i) + cse_v34);
    let cse_v39 : i32 = (cse_v37 + cse_v21);
    for (var v_58 : i32 = 0i; v_58 < 8i; v_58++) {
      workgroupBarrier();
      let cse_v10 : i32 = (cse_v5 * 8i);
      let cse_v42 : i32 = (cse_v10 + i32((u32((cse_v21 ^ i32((cse_v11 % 8u)))) % 8u)));
      v_14[cse_v42] = v_9[0i];
      v_15[cse_v42] = vec4<f32>(v_11[0i]);
      v_15[((cse_v10 + i32((u32((cse_v32 ^ i32((u32((cse_v5 + 32i)) % 8u)))) % 8u))) + 256i)] = vec4<f32>(v_11[1i]);
      workgroupBarrier();
      v_21[0i] = cse_v36;
      let cse_v12 : i32 = select((v_58 + 1i), 0i, (v_58 == 7i));
      v_9[0i] = q_ptr[((((v_21[0i] * 512i) + cse_v30) + (cse_v12 * 8i)) + cse_v31)];
      let cse_v6 : i32 = select(0i, 64i, (v_58 == 7i));
      v_22[0i] = (min(((cse_v5 + v_20[0i]) + cse_v6), (v_2[0i] - 1i)) & 1023i);
      let cse_v22 : i32 = (cse_v12 * 8i);
      v_11[0i] = key_ptr[(((v_22[0i] * 64i) + cse_v22) + cse_v21)];
      v_23[0i] = (min((((cse_v5 + v_20[0i]) + cse_v6) + 32i), (v_2[0i] - 1i)) & 1023i);
      v_11[1i] = key_ptr[(((v_23[0i] * 64i) + cse_v22) + cse_v32)];
      for (var v_59 : i32 = 0i; v_59 < 8i; v_59++) {
        let cse_v45 : i32 = (((cse_v33 * 64i) + (cse_v21 * 8i)) + i32((u32((v_59 ^ i32((u32(cse_v39) % 8u)))) % 8u)));
        let v_60 : vec4<f32> = v_15[cse_v45];
        let v_61 : vec4<f32> = v_15[(cse_v45 + 128i)];
        let v_62 : vec4<f32> = v_15[(cse_v45 + 256i)];
        let v_63 : vec4<f32> = v_15[(cse_v45 + 384i)];
        let cse_v44 : i32 = (((cse_v7 * 32i) + (cse_v34 * 8i)) + i32((u32((v_59 ^ i32((u32(cse_v38) % 8u)))) % 8u)));
        let v_64 : vec4<f32> = v_14[cse_v44];
        v_13[0i] = vec4<f32>(fma((v_64)[3], (v_60)[3], fma((v_64)[2], (v_60)[2], fma((v_64)[1], (v_60)[1], fma((v_64)[0], (v_60)[0], (v_13[0i])[0])))), fma((v_64)[3], (v_61)[3], fma((v_64)[2], (v_61)[2], fma((v_64)[1], (v_61)[1], fma((v_64)[0], (v_61)[0], (v_13[0i])[1])))), fma((v_64)[3], (v_62)[3], fma((v_64)[2], (v_62)[2], fma((v_64)[1], (v_62)[1], fma((v_64)[0], (v_62)[0], (v_13[0i])[2])))), fma((v_64)[3], (v_63)[3], fma((v_64)[2], (v_63)[2], fma((v_64)[1], (v_63)[1], fma((v_64)[0], (v_63)[0], (v_13[0i])[3])))));
        let v_65 : vec4<f32> = v_14[(cse_v44 + 128i)];
        v_13[1i] = vec4<f32>(fma((v_65)[3], (v_60)[3], fma((v_65)[2], (v_60)[2], fma((v_65)[1], (v_60)[1], fma((v_65)[0], (v_60)[0], (v_13[1i])[0])))), fma((v_65)[3], (v_61)[3], fma((v_65)[2], (v_61)[2], fma((v_65)[1], (v_61)[1], fma((v_65)[0], (v_61)[0], (v_13[1i])[1])))), fma((v_65)[3], (v_62)[3], fma((v_65)[2], (v_62)[2], fma((v_65)[1], (v_62)[1], fma((v_65)[0], (v_62)[0], (v_13[1i])[2])))), fma((v_65)[3], (v_63)[3], fma((v_65)[2], (v_63)[2], fma((v_65)[1], (v_63)[1], fma((v_65)[0], (v_63)[0], (v_13[1i])[3])))));
      }
    }
    let cse_v23 : i32 = (cse_v2 + (cse_v3>>7u));
    v_24[0i] = (cse_v23 + v[0i]);
    v_25[0i] = max((v_24[0i] - 511i), 0i);
    v_26[0i] = ((cse_v37 + v_20[0i]) + cse_v21);
    v_27[0i] = (((cse_v37 + v_20[0i]) + cse_v21) + 16i);
    v_28[0i] = (((cse_v37 + v_20[0i]) + cse_v21) + 32i);
    v_29[0i] = (((cse_v37 + v_20[0i]) + cse_v21) + 48i);
    var condval : f32;
    if ((((v_26[0i] <= v_24[0i]) & (v_25[0i] <= v_26[0i])) & (v_26[0i] < v_2[0i]))) {
      condval = (v_13[0i])[0];
} else {
      condval = -3.000000e+38f;
}
    var condval_1 : f32;
    if ((((v_27[0i] <= v_24[0i]) & (v_25[0i] <= v_27[0i])) & (v_27[0i] < v_2[0i]))) {
      condval_1 = (v_13[0i])[1];
} else {
      condval_1 = -3.000000e+38f;
}
    var condval_2 : f32;
    if ((((v_28[0i] <= v_24[0i]) & (v_25[0i] <= v_28[0i])) & (v_28[0i] < v_2[0i]))) {
      condval_2 = (v_13[0i])[2];
} else {
      condval_2 = -3.000000e+38f;
}
    var condval_3 : f32;
    if ((((v_29[0i] <= v_24[0i]) & (v_25[0i] <= v_29[0i])) & (v_29[0i] < v_2[0i]))) {
      condval_3 = (v_13[0i])[3];
} else {
      condval_3 = -3.000000e+38f;
}
    v_13[0i] = vec4<f32>(condval, condval_1, condval_2, condval_3);
    let v_66 : vec4<f32> = v_13[0i];
    v_16[cse_v41] = max(max(max((v_66)[0], (v_66)[1]), (v_66)[2]), (v_66)[3]);
    v_30[0i] = ((cse_v23 + v[0i]) + 2i);
    v_31[0i] = max((v_30[0i] - 511i), 0i);
    v_32[0i] = ((cse_v37 + v_20[0i]) + cse_v21);
    v_33[0i] = (((cse_v37 + v_20[0i]) + cse_v21) + 16i);
    v_34[0i] = (((cse_v37 + v_20[0i]) + cse_v21) + 32i);
    v_35[0i] = (((cse_v37 + v_20[0i]) + cse_v21) + 48i);
    var condval_4 : f32;
    if ((((v_32[0i] <= v_30[0i]) & (v_31[0i] <= v_32[0i])) & (v_32[0i] < v_2[0i]))) {
      condval_4 = (v_13[1i])[0];
} else {
      condval_4 = -3.000000e+38f;
}
    var condval_5 : f32;
    if ((((v_33[0i] <= v_30[0i]) & (v_31[0i] <= v_33[0i])) & (v_33[0i] < v_2[0i]))) {
      condval_5 = (v_13[1i])[1];
} else {
      condval_5 = -3.000000e+38f;
}
    var condval_6 : f32;
    if ((((v_34[0i] <= v_30[0i]) & (v_31[0i] <= v_34[0i])) & (v_34[0i] < v_2[0i]))) {
      condval_6 = (v_13[1i])[2];
} else {
      condval_6 = -3.000000e+38f;
}
    var condval_7 : f32;
    if ((((v_35[0i] <= v_30[0i]) & (v_31[0i] <= v_35[0i])) & (v_35[0i] < v_2[0i]))) {
      condval_7 = (v_13[1i])[3];
} else {
      condval_7 = -3.000000e+38f;
}
    v_13[1i] = vec4<f32>(condval_4, condval_5, condval_6, condval_7);
    let v_67 : vec4<f32> = v_13[1i];
    v_16[cse_v43] = max(max(max((v_67)[0], (v_67)[1]), (v_67)[2]), (v_67)[3]);
    workgroupBarrier();
    v_36[0i] = max(v_3[0i], max(max(max(max(v_16[cse_v40], v_16[(cse_v40 + 1i)]), max(v_16[(cse_v40 + 2i)], v_16[(cse_v40 + 3i)])), max(max(v_16[(cse_v40 + 4i)], v_16[(cse_v40 + 5i)]), max(v_16[(cse_v40 + 6i)], v_16[(cse_v40 + 7i)]))), max(max(max(v_16[(cse_v40 + 8i)], v_16[(cse_v40 + 9i)]), max(v_16[(cse_v40 + 10i)], v_16[(cse_v40 + 11i)])), max(max(v_16[(cse_v40 + 12i)], v_16[(cse_v40 + 13i)]), max(v_16[(cse_v40 + 14i)], v_16[(cse_v40 + 15i)])))));
    v_37[0i] = exp((v_3[0i] - v_36[0i]));
    v_3[0i] = v_36[0i];
    let v_68 : vec4<f32> = v_13[0i];
    var condval_8 : f32;
    if ((-3.000000e+38f < (v_68)[0])) {
      condval_8 = exp(((v_68)[0] - v_36[0i]));
} else {
      condval_8 = 0.000000e+00f;
}
    var condval_9 : f32;
    if ((-3.000000e+38f < (v_68)[1])) {
      condval_9 = exp(((v_68)[1] - v_36[0i]));
} else {
      condval_9 = 0.000000e+00f;
}
    var condval_10 : f32;
    if ((-3.000000e+38f < (v_68)[2])) {
      condval_10 = exp(((v_68)[2] - v_36[0i]));
} else {
      condval_10 = 0.000000e+00f;
}
    var condval_11 : f32;
    if ((-3.000000e+38f < (v_68)[3])) {
      condval_11 = exp(((v_68)[3] - v_36[0i]));
} else {
      condval_11 = 0.000000e+00f;
}
    v_13[0i] = vec4<f32>(condval_8, condval_9, condval_10, condval_11);
    v_17[cse_v41] = v_13[0i];
    let v_69 : vec4<f32> = v_13[0i];
    v_5[0i] = fma(v_5[0i], v_37[0i], ((((v_69)[0] + (v_69)[1]) + (v_69)[2]) + (v_69)[3]));
    if (cse_v39 == 0i) {
      v_18[cse_v38] = v_37[0i];
    }
    v_38[0i] = max(v_4[0i], max(max(max(max(v_16[(cse_v40 + 256i)], v_16[(cse_v40 + 257i)]), max(v_16[(cse_v40 + 258i)], v_16[(cse_v40 + 259i)])), max(max(v_16[(cse_v40 + 260i)], v_16[(cse_v40 + 261i)]), max(v_16[(cse_v40 + 262i)], v_16[(cse_v40 + 263i)]))), max(max(max(v_16[(cse_v40 + 264i)], v_16[(cse_v40 + 265i)]), max(v_16[(cse_v40 + 266i)], v_16[(cse_v40 + 267i)])), max(max(v_16[(cse_v40 + 268i)], v_16[(cse_v40 + 269i)]), max(v_16[(cse_v40 + 270i)], v_16[(cse_v40 + 271i)])))));
    v_39[0i] = exp((v_4[0i] - v_38[0i]));
    v_4[0i] = v_38[0i];
    let v_70 : vec4<f32> = v_13[1i];
    var condval_12 : f32;
    if ((-3.000000e+38f < (v_70)[0])) {
      condval_12 = exp(((v_70)[0] - v_38[0i]));
} else {
      condval_12 = 0.000000e+00f;
}
    var condval_13 : f32;
    if ((-3.000000e+38f < (v_70)[1])) {
      condval_13 = exp(((v_70)[1] - v_38[0i]));
} else {
      condval_13 = 0.000000e+00f;
}
    var condval_14 : f32;
    if ((-3.000000e+38f < (v_70)[2])) {
      condval_14 = exp(((v_70)[2] - v_38[0i]));
} else {
      condval_14 = 0.000000e+00f;
}
    var condval_15 : f32;
    if ((-3.000000e+38f < (v_70)[3])) {
      condval_15 = exp(((v_70)[3] - v_38[0i]));
} else {
      condval_15 = 0.000000e+00f;
}
    v_13[1i] = vec4<f32>(condval_12, condval_13, condval_14, condval_15);
    v_17[cse_v43] = v_13[1i];
    let v_71 : vec4<f32> = v_13[1i];
    v_6[0i] = fma(v_6[0i], v_39[0i], ((((v_71)[0] + (v_71)[1]) + (v_71)[2]) + (v_71)[3]));
    if (cse_v39 == 0i) {
      v_18[(cse_v38 + 16i)] = v_39[0i];
    }
    workgroupBarrier();
    let v_72 : f32 = v_18[cse_v7];
    v_7[0i] = (v_7[0i] * vec4<f32>(v_72, v_72, v_72, v_72));
    let v_73 : f32 = v_18[cse_v13];
    v_7[1i] = (v_7[1i] * vec4<f32>(v_73, v_73, v_73, v_73));
    let v_74 : f32 = v_18[cse_v14];
    v_7[2i] = (v_7[2i] * vec4<f32>(v_74, v_74, v_74, v_74));
    let v_75 : f32 = v_18[cse_v15];
    v_7[3i] = (v_7[3i] * vec4<f32>(v_75, v_75, v_75, v_75));
    let v_76 : f32 = v_18[cse_v16];
    v_7[4i] = (v_7[4i] * vec4<f32>(v_76, v_76, v_76, v_76));
    let v_77 : f32 = v_18[cse_v17];
    v_7[5i] = (v_7[5i] * vec4<f32>(v_77, v_77, v_77, v_77));
    let v_78 : f32 = v_18[cse_v18];
    v_7[6i] = (v_7[6i] * vec4<f32>(v_78, v_78, v_78, v_78));
    let v_79 : f32 = v_18[cse_v19];
    v_7[7i] = (v_7[7i] * vec4<f32>(v_79, v_79, v_79, v_79));
    v_40[0i] = (min(v_20[0i], (v_2[0i] - 1i)) & 1023i);
    v_19[0i] = value_ptr[((v_40[0i] * 64i) + cse_v24)];
    v_41[0i] = (min((v_20[0i] + 16i), (v_2[0i] - 1i)) & 1023i);
    v_19[1i] = value_ptr[((v_41[0i] * 64i) + cse_v24)];
    v_42[0i] = (min((v_20[0i] + 32i), (v_2[0i] - 1i)) & 1023i);
    v_19[2i] = value_ptr[((v_42[0i] * 64i) + cse_v24)];
    v_43[0i] = (min((v_20[0i] + 48i), (v_2[0i] - 1i)) & 1023i);
    v_19[3i] = value_ptr[((v_43[0i] * 64i) + cse_v24)];
    for (var v_80 : i32 = 0i; v_80 < 16i; v_80++) {
      v_44[0i] = vec4<f32>(v_19[0i]);
      v_44[1i] = vec4<f32>(v_19[1i]);
      v_44[2i] = vec4<f32>(v_19[2i]);
      v_44[3i] = vec4<f32>(v_19[3i]);
      v_45[0i] = (min(((v_20[0i] + v_80) + 1i), (v_2[0i] - 1i)) & 1023i);
      v_19[0i] = value_ptr[((v_45[0i] * 64i) + cse_v24)];
      v_46[0i] = (min(((v_20[0i] + v_80) + 17i), (v_2[0i] - 1i)) & 1023i);
      v_19[1i] = value_ptr[((v_46[0i] * 64i) + cse_v24)];
      v_47[0i] = (min(((v_20[0i] + v_80) + 33i), (v_2[0i] - 1i)) & 1023i);
      v_19[2i] = value_ptr[((v_47[0i] * 64i) + cse_v24)];
      v_48[0i] = (min(((v_20[0i] + v_80) + 49i), (v_2[0i] - 1i)) & 1023i);
      v_19[3i] = value_ptr[((v_48[0i] * 64i) + cse_v24)];
      let cse_v25 : i32 = ((cse_v7 * 16i) + v_80);
      let v_81 : vec4<f32> = v_17[cse_v25];
      v_7[0i] = fma(vec4<f32>((v_81)[0], (v_81)[0], (v_81)[0], (v_81)[0]), v_44[0i], v_7[0i]);
      v_7[0i] = fma(vec4<f32>((v_81)[1], (v_81)[1], (v_81)[1], (v_81)[1]), v_44[1i], v_7[0i]);
      v_7[0i] = fma(vec4<f32>((v_81)[2], (v_81)[2], (v_81)[2], (v_81)[2]), v_44[2i], v_7[0i]);
      v_7[0i] = fma(vec4<f32>((v_81)[3], (v_81)[3], (v_81)[3], (v_81)[3]), v_44[3i], v_7[0i]);
      let v_82 : vec4<f32> = v_17[(cse_v25 + 64i)];
      v_7[1i] = fma(vec4<f32>((v_82)[0], (v_82)[0], (v_82)[0], (v_82)[0]), v_44[0i], v_7[1i]);
      v_7[1i] = fma(vec4<f32>((v_82)[1], (v_82)[1], (v_82)[1], (v_82)[1]), v_44[1i], v_7[1i]);
      v_7[1i] = fma(vec4<f32>((v_82)[2], (v_82)[2], (v_82)[2], (v_82)[2]), v_44[2i], v_7[1i]);
      v_7[1i] = fma(vec4<f32>((v_82)[3], (v_82)[3], (v_82)[3], (v_82)[3]), v_44[3i], v_7[1i]);
      let v_83 : vec4<f32> = v_17[(cse_v25 + 128i)];
      v_7[2i] = fma(vec4<f32>((v_83)[0], (v_83)[0], (v_83)[0], (v_83)[0]), v_44[0i], v_7[2i]);
      v_7[2i] = fma(vec4<f32>((v_83)[1], (v_83)[1], (v_83)[1], (v_83)[1]), v_44[1i], v_7[2i]);
      v_7[2i] = fma(vec4<f32>((v_83)[2], (v_83)[2], (v_83)[2], (v_83)[2]), v_44[2i], v_7[2i]);
      v_7[2i] = fma(vec4<f32>((v_83)[3], (v_83)[3], (v_83)[3], (v_83)[3]), v_44[3i], v_7[2i]);
      let v_84 : vec4<f32> = v_17[(cse_v25 + 192i)];
      v_7[3i] = fma(vec4<f32>((v_84)[0], (v_84)[0], (v_84)[0], (v_84)[0]), v_44[0i], v_7[3i]);
      v_7[3i] = fma(vec4<f32>((v_84)[1], (v_84)[1], (v_84)[1], (v_84)[1]), v_44[1i], v_7[3i]);
      v_7[3i] = fma(vec4<f32>((v_84)[2], (v_84)[2], (v_84)[2], (v_84)[2]), v_44[2i], v_7[3i]);
      v_7[3i] = fma(vec4<f32>((v_84)[3], (v_84)[3], (v_84)[3], (v_84)[3]), v_44[3i], v_7[3i]);
      let v_85 : vec4<f32> = v_17[(cse_v25 + 256i)];
      v_7[4i] = fma(vec4<f32>((v_85)[0], (v_85)[0], (v_85)[0], (v_85)[0]), v_44[0i], v_7[4i]);
      v_7[4i] = fma(vec4<f32>((v_85)[1], (v_85)[1], (v_85)[1], (v_85)[1]), v_44[1i], v_7[4i]);
      v_7[4i] = fma(vec4<f32>((v_85)[2], (v_85)[2], (v_85)[2], (v_85)[2]), v_44[2i], v_7[4i]);
      v_7[4i] = fma(vec4<f32>((v_85)[3], (v_85)[3], (v_85)[3], (v_85)[3]), v_44[3i], v_7[4i]);
      let v_86 : vec4<f32> = v_17[(cse_v25 + 320i)];
      v_7[5i] = fma(vec4<f32>((v_86)[0], (v_86)[0], (v_86)[0], (v_86)[0]), v_44[0i], v_7[5i]);
      v_7[5i] = fma(vec4<f32>((v_86)[1], (v_86)[1], (v_86)[1], (v_86)[1]), v_44[1i], v_7[5i]);
      v_7[5i] = fma(vec4<f32>((v_86)[2], (v_86)[2], (v_86)[2], (v_86)[2]), v_44[2i], v_7[5i]);
      v_7[5i] = fma(vec4<f32>((v_86)[3], (v_86)[3], (v_86)[3], (v_86)[3]), v_44[3i], v_7[5i]);
      let v_87 : vec4<f32> = v_17[(cse_v25 + 384i)];
      v_7[6i] = fma(vec4<f32>((v_87)[0], (v_87)[0], (v_87)[0], (v_87)[0]), v_44[0i], v_7[6i]);
      v_7[6i] = fma(vec4<f32>((v_87)[1], (v_87)[1], (v_87)[1], (v_87)[1]), v_44[1i], v_7[6i]);
      v_7[6i] = fma(vec4<f32>((v_87)[2], (v_87)[2], (v_87)[2], (v_87)[2]), v_44[2i], v_7[6i]);
      v_7[6i] = fma(vec4<f32>((v_87)[3], (v_87)[3], (v_87)[3], (v_87)[3]), v_44[3i], v_7[6i]);
      let v_88 : vec4<f32> = v_17[(cse_v25 + 448i)];
      v_7[7i] = fma(vec4<f32>((v_88)[0], (v_88)[0], (v_88)[0], (v_88)[0]), v_44[0i], v_7[7i]);
      v_7[7i] = fma(vec4<f32>((v_88)[1], (v_88)[1], (v_88)[1], (v_88)[1]), v_44[1i], v_7[7i]);
      v_7[7i] = fma(vec4<f32>((v_88)[2], (v_88)[2], (v_88)[2], (v_88)[2]), v_44[2i], v_7[7i]);
      v_7[7i] = fma(vec4<f32>((v_88)[3], (v_88)[3], (v_88)[3], (v_88)[3]), v_44[3i], v_7[7i]);
    }
  }
  v_16[cse_v41] = v_5[0i];
  v_16[cse_v43] = v_6[0i];
  workgroupBarrier();
  if (i32(threadIdx.x) < 32i) {
    let cse_v8 : i32 = (i32(threadIdx.x) * 16i);
    v_18[i32(threadIdx.x)] = ((((v_16[cse_v8] + v_16[(cse_v8 + 1i)]) + (v_16[(cse_v8 + 2i)] + v_16[(cse_v8 + 3i)])) + ((v_16[(cse_v8 + 4i)] + v_16[(cse_v8 + 5i)]) + (v_16[(cse_v8 + 6i)] + v_16[(cse_v8 + 7i)]))) + (((v_16[(cse_v8 + 8i)] + v_16[(cse_v8 + 9i)]) + (v_16[(cse_v8 + 10i)] + v_16[(cse_v8 + 11i)])) + ((v_16[(cse_v8 + 12i)] + v_16[(cse_v8 + 13i)]) + (v_16[(cse_v8 + 14i)] + v_16[(cse_v8 + 15i)]))));
  }
  workgroupBarrier();
  let cse_v20 : i32 = cse_v2;
  v_49[0i] = cse_v20;
  let cse_v26 : i32 = (cse_v9 * 64i);
  let cse_v35 : i32 = cse_v24;
  if (v_49[0i] < cse_v1) {
    let v_89 : f32 = v_18[cse_v7];
    out_ptr[(((v_49[0i] * 512i) + cse_v26) + cse_v35)] = vec4<f16>((v_7[0i] / vec4<f32>(v_89, v_89, v_89, v_89)));
  }
  v_50[0i] = cse_v20;
  if (v_50[0i] < cse_v1) {
    let v_90 : f32 = v_18[cse_v13];
    out_ptr[((((v_50[0i] * 512i) + cse_v26) + cse_v35) + 256i)] = vec4<f16>((v_7[1i] / vec4<f32>(v_90, v_90, v_90, v_90)));
  }
  let cse_v27 : i32 = (cse_v2 + 1i);
  v_51[0i] = cse_v27;
  if (v_51[0i] < cse_v1) {
    let v_91 : f32 = v_18[cse_v14];
    out_ptr[(((v_51[0i] * 512i) + cse_v26) + cse_v35)] = vec4<f16>((v_7[2i] / vec4<f32>(v_91, v_91, v_91, v_91)));
  }
  v_52[0i] = cse_v27;
  if (v_52[0i] < cse_v1) {
    let v_92 : f32 = v_18[cse_v15];
    out_ptr[((((v_52[0i] * 512i) + cse_v26) + cse_v35) + 256i)] = vec4<f16>((v_7[3i] / vec4<f32>(v_92, v_92, v_92, v_92)));
  }
  let cse_v28 : i32 = (cse_v2 + 2i);
  v_53[0i] = cse_v28;
  if (v_53[0i] < cse_v1) {
    let v_93 : f32 = v_18[cse_v16];
    out_ptr[(((v_53[0i] * 512i) + cse_v26) + cse_v35)] = vec4<f16>((v_7[4i] / vec4<f32>(v_93, v_93, v_93, v_93)));
  }
  v_54[0i] = cse_v28;
  if (v_54[0i] < cse_v1) {
    let v_94 : f32 = v_18[cse_v17];
    out_ptr[((((v_54[0i] * 512i) + cse_v26) + cse_v35) + 256i)] = vec4<f16>((v_7[5i] / vec4<f32>(v_94, v_94, v_94, v_94)));
  }
  let cse_v29 : i32 = (cse_v2 + 3i);
  v_55[0i] = cse_v29;
  if (v_55[0i] < cse_v1) {
    let v_95 : f32 = v_18[cse_v18];
    out_ptr[(((v_55[0i] * 512i) + cse_v26) + cse_v35)] = vec4<f16>((v_7[6i] / vec4<f32>(v_95, v_95, v_95, v_95)));
  }
  v_56[0i] = cse_v29;
  if (v_56[0i] < cse_v1) {
    let v_96 : f32 = v_18[cse_v19];
    out_ptr[((((v_56[0i] * 512i) + cse_v26) + cse_v35) + 256i)] = vec4<f16>((v_7[7i] / vec4<f32>(v_96, v_96, v_96, v_96)));
  }
}


