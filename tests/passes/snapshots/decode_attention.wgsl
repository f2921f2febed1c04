//----------------------------------------
enable f16;

@group(0) @binding(0) var<storage, read> key_ptr : array<vec4<f16>>;
@group(0) @binding(1) var<storage, read_write> o_partial_ptr : array<vec4<f16>>;
@group(0) @binding(2) var<storage, read> positions_ptr : array<i32>;
@group(0) @binding(3) var<storage, read> q_norm_ptr : array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> qkv_ptr : array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> rotary_ptr : array<f32>;
@group(0) @binding(6) var<storage, read_write> split_lse_ptr : array<f32>;
@group(0) @binding(7) var<storage, read> value_ptr : array<vec4<f16>>;

struct PODArgs {
  packGridDimX: u32
}
@group(0) @binding(8) var<uniform> podArgs : PODArgs;

var<workgroup> v_7 : array<f32, 256>;
var<workgroup> v_8 : array<vec4<f32>, 64>;
var<workgroup> v_11 : array<f32, 1088>;
var<workgroup> v_13 : array<f32, 16>;
var<workgroup> v_14 : array<vec4<f32>, 16>;
var<workgroup> v_15 : array<f32, 1>;
var<workgroup> v_16 : array<vec4<f32>, 64>;
var<workgroup> v_17 : array<vec4<f32>, 64>;
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
  var v_5 : array<vec4<f16>, 16>;
  var v_6 : array<vec4<f32>, 6>;
  var v_9 : array<vec4<f32>, 1>;
  var v_10 : array<vec4<f16>, 16>;
  var v_12 : array<vec4<f32>, 1>;
  var v_18 : array<i32, 1>;
  var v_19 : array<i32, 1>;
  var v_20 : array<i32, 1>;
  var v_21 : array<i32, 1>;
  var v_22 : array<f32, 1>;
  var v_23 : array<f32, 1>;
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
  var v_36 : array<i32, 1>;
  var v_37 : array<i32, 1>;
  var v_38 : array<i32, 1>;
  var v_39 : array<i32, 1>;
  var v_40 : array<i32, 1>;
  var v_41 : array<f32, 1>;
  var v_42 : array<f32, 1>;
  var v_43 : array<f32, 1>;
  var v_44 : array<f32, 1>;
  var v_45 : array<i32, 1>;
  var v_46 : array<i32, 1>;
  var v_47 : array<i32, 1>;
  var v_48 : array<i32, 1>;
  v[0i] = (positions_ptr[2i] - 1i);
  v_1[0i] = (positions_ptr[1i] - 1i);
  v_2[0i] = min((max((v[0i] - 511i), 0i) + (v__1 * (((min(511i, v[0i])>>9u) * 64i) + 64i))), (v[0i] + 1i));
  v[0i] = min((((((min(511i, v[0i])>>9u) * 64i) + max((v[0i] - 511i), 0i)) + (v__1 * (((min(511i, v[0i])>>9u) * 64i) + 64i))) + 64i), (v[0i] + 1i));
  v_3[0i] = -3.000000e+38f;
  v_4[0i] = 0.000000e+00f;
  let cse_v3 : i32 = (i32(blockIdx.y) * 64i);
  let cse_v9 : i32 = ((v__1 * 512i) + cse_v3);
  let cse_v10 : i32 = ((v__1 * 16i) + (i32(blockIdx.y) * 2i));
  let cse_v14 : i32 = (cse_v10 + 1i);
  if (v_2[0i] < v[0i]) {
    let cse_v1 : i32 = (i32(threadIdx.x)>>4u);
    v_18[0i] = (min((cse_v1 + v_2[0i]), (v[0i] - 1i)) & 1023i);
    let cse_v2 : u32 = u32(i32(threadIdx.x));
    let cse_v11 : i32 = i32((cse_v2 % 16u));
    v_5[0i] = key_ptr[((v_18[0i] * 64i) + cse_v11)];
    v_5[1i] = key_ptr[(((v_18[0i] * 64i) + cse_v11) + 16i)];
    v_5[2i] = key_ptr[(((v_18[0i] * 64i) + cse_v11) + 32i)];
    v_5[3i] = key_ptr[(((v_18[0i] * 64i) + cse_v11) + 48i)];
    v_19[0i] = (min(((cse_v1 + v_2[0i]) + 16i), (v[0i] - 1i)) & 1023i);
    v_5[4i] = key_ptr[((v_19[0i] * 64i) + cse_v11)];
    v_5[5i] = key_ptr[(((v_19[0i] * 64i) + cse_v11) + 16i)];
    v_5[6i] = key_ptr[(((v_19[0i] * 64i) + cse_v11) + 32i)];
    v_5[7i] = key_ptr[(((v_19[0i] * 64i) + cse_v11) + 48i)];
    v_20[0i] = (min(((cse_v1 + v_2[0i]) + 32i), (v[0i] - 1i)) & 1023i);
    v_5[8i] = key_ptr[((v_20[0i] * 64i) + cse_v11)];
    v_5[9i] = key_ptr[(((v_20[0i] * 64i) + cse_v11) + 16i)];
    v_5[10i] = key_ptr[(((v_20[0i] * 64i) + cse_v11) + 32i)];
    v_5[11i] = key_ptr[(((v_20[0i] * 64i) + cse_v11) + 48i)];
    v_21[0i] = (min(((cse_v1 + v_2[0i]) + 48i), (v[0i] - 1i)) & 1023i);
    v_5[12i] = key_ptr[((v_21[0i] * 64i) + cse_v11)];
    v_5[13i] = key_ptr[(((v_21[0i] * 64i) + cse_v11) + 16i)];
    v_5[14i] = key_ptr[(((v_21[0i] * 64i) + cse_v11) + 32i)];
    v_5[15i] = key_ptr[(((v_21[0i] * 64i) + cse_v11) + 48i)];
    let cse_v12 : i32 = ((i32(threadIdx.x) & 31i) * 8i);
    let v_49 : f32 = rotary_ptr[((v_1[0i] * 384i) + cse_v12)];
    let v_50 : f32 = rotary_ptr[(((v_1[0i] * 384i) + cse_v12) + 1i)];
    let v_51 : f32 = rotary_ptr[(((v_1[0i] * 384i) + cse_v12) + 2i)];
    let v_52 : f32 = rotary_ptr[(((v_1[0i] * 384i) + cse_v12) + 3i)];
    let v_53 : f32 = rotary_ptr[(((v_1[0i] * 384i) + cse_v12) + 4i)];
    let v_54 : f32 = rotary_ptr[(((v_1[0i] * 384i) + cse_v12) + 5i)];
    let v_55 : f32 = rotary_ptr[(((v_1[0i] * 384i) + cse_v12) + 6i)];
    let v_56 : f32 = rotary_ptr[(((v_1[0i] * 384i) + cse_v12) + 7i)];
    let cse_v4 : i32 = (i32(threadIdx.x) & 31i);
    let cse_v6 : i32 = (cse_v3 + cse_v4);
    v_6[0i] = qkv_ptr[cse_v6];
    v_6[2i] = q_norm_ptr[cse_v4];
    v_6[4i] = vec4<f32>(v_49, v_51, v_53, v_55);
    v_6[1i] = qkv_ptr[(cse_v6 + 32i)];
    let cse_v7 : i32 = (cse_v4 + 32i);
    v_6[3i] = q_norm_ptr[cse_v7];
    v_6[5i] = vec4<f32>(v_50, v_52, v_54, v_56);
    v_22[0i] = 0.000000e+00f;
    let v_57 : vec4<f32> = v_6[0i];
    v_22[0i] = fma((v_57)[3], (v_57)[3], fma((v_57)[2], (v_57)[2], fma((v_57)[1], (v_57)[1], fma((v_57)[0], (v_57)[0], v_22[0i]))));
    let v_58 : vec4<f32> = v_6[1i];
    v_22[0i] = fma((v_58)[3], (v_58)[3], fma((v_58)[2], (v_58)[2], fma((v_58)[1], (v_58)[1], fma((v_58)[0], (v_58)[0], v_22[0i]))));
    v_7[i32(threadIdx.x)] = v_22[0i];
    workgroupBarrier();
    v_23[0i] = (1.000000e+00f / sqrt((((((((v_7[0i] + v_7[1i]) + (v_7[2i] + v_7[3i])) + ((v_7[4i] + v_7[5i]) + (v_7[6i] + v_7[7i]))) + (((v_7[8i] + v_7[9i]) + (v_7[10i] + v_7[11i])) + ((v_7[12i] + v_7[13i]) + (v_7[14i] + v_7[15i])))) + ((((v_7[16i] + v_7[17i]) + (v_7[18i] + v_7[19i])) + ((v_7[20i] + v_7[21i]) + (v_7[22i] + v_7[23i]))) + (((v_7[24i] + v_7[25i]) + (v_7[26i] + v_7[27i])) + ((v_7[28i] + v_7[29i]) + (v_7[30i] + v_7[31i]))))) / 2.560000e+02f) + 1.000000e-06f)));
    v_6[0i] = ((v_6[0i] * vec4<f32>(v_23[0i], v_23[0i], v_23[0i], v_23[0i])) * v_6[2i]);
    v_6[1i] = ((v_6[1i] * vec4<f32>(v_23[0i], v_23[0i], v_23[0i], v_23[0i])) * v_6[3i]);
    v_6[2i] = ((v_6[0i] * v_6[4i]) - (v_6[1i] * v_6[5i]));
    v_6[3i] = fma(v_6[0i], v_6[5i], (v_6[1i] * v_6[4i]));
    if (bool(1) & (i32(threadIdx.x) < 32i)) {
      v_8[cse_v4] = v_6[2i];
      v_8[cse_v7] = v_6[3i];
    }
    workgroupBarrier();
    v_9[0i] = vec4<f32>(0.000000e+00f, 0.000000e+00f, 0.000000e+00f, 0.000000e+00f);
    let v_59 : i32 = (((v[0i] + 63i) - v_2[0i])>>6u);
    let cse_v5 : i32 = (i32(threadIdx.x)>>6u);
    let cse_v13 : i32 = i32((cse_v2 % 64u));
    for (var v_60 : i32 = 0i; v_60 < v_59; v_60++) {
      v_24[0i] = ((v_60 * 64i) + v_2[0i]);
      let cse_v8 : i32 = (cse_v5 * 4i);
      v_25[0i] = (min((cse_v8 + v_24[0i]), (v[0i] - 1i)) & 1023i);
      v_10[0i] = value_ptr[((v_25[0i] * 64i) + cse_v13)];
      v_26[0i] = (min(((cse_v8 + v_24[0i]) + 16i), (v[0i] - 1i)) & 1023i);
      v_10[1i] = value_ptr[((v_26[0i] * 64i) + cse_v13)];
      v_27[0i] = (min(((cse_v8 + v_24[0i]) + 32i), (v[0i] - 1i)) & 1023i);
      v_10[2i] = value_ptr[((v_27[0i] * 64i) + cse_v13)];
      v_28[0i] = (min(((cse_v8 + v_24[0i]) + 48i), (v[0i] - 1i)) & 1023i);
      v_10[3i] = value_ptr[((v_28[0i] * 64i) + cse_v13)];
      v_29[0i] = (min(((cse_v8 + v_24[0i]) + 1i), (v[0i] - 1i)) & 1023i);
      v_10[4i] = value_ptr[((v_29[0i] * 64i) + cse_v13)];
      v_30[0i] = (min(((cse_v8 + v_24[0i]) + 17i), (v[0i] - 1i)) & 1023i);
      v_10[5i] = value_ptr[((v_30[0i] * 64i) + cse_v13)];
      v_31[0i] = (min(((cse_v8 + v_24[0i]) + 33i), (v[0i] - 1i)) & 1023i);
      v_10[6i] = value_ptr[((v_31[0i] * 64i) + cse_v13)];
      v_32[0i] = (min(((cse_v8 + v_24[0i]) + 49i), (v[0i] - 1i)) & 1023i);
      v_10[7i] = value_ptr[((v_32[0i] * 64i) + cse_v13)];
      v_33[0i] = (min(((cse_v8 + v_24[0i]) + 2i), (v[0i] - 1i)) & 1023i);
      v_10[8i] = value_ptr[((v_33[0i] * 64i) + cse_v13)];
      v_34[0i] = (min(((cse_v8 + v_24[0i]) + 18i), (v[0i] - 1i)) & 1023i);
      v_10[9i] = value_ptr[((v_34[0i] * 64i) + cse_v13)];
      v_35[0i] = (min(((cse_v8 + v_24[0i]) + 34i), (v[0i] - 1i)) & 1023i);
      v_10[10i] = value_ptr[((v_35[0i] * 64i) + cse_v13)];
      v_36[0i] = (min(((cse_v8 + v_24[0i]) + 50i), (v[0i] - 1i)) & 1023i);
      v_10[11i] = value_ptr[((v_36[0i] * 64i) + cse_v13)];
      v_37[0i] = (min(((cse_v8 + v_24[0i]) + 3i), (v[0i] - 1i)) & 1023i);
      v_10[12i] = value_ptr[((v_37[0i] * 64i) + cse_v13)];
      v_38[0i] = (min(((cse_v8 + v_24[0i]) + 19i), (v[0i] - 1i)) & 1023i);
      v_10[13i] = value_ptr[((v_38[0i] * 64i) + cse_v13)];
      v_39[0i] = (min(((cse_v8 + v_24[0i]) + 35i), (v[0i] - 1i)) & 1023i);
      v_10[14i] = value_ptr[((v_39[0i] * 64i) + cse_v13)];
      v_40[0i] = (min(((cse_v8 + v_24[0i]) + 51i), (v[0i] - 1i)) & 1023i);
      v_10[15i] = value_ptr[((v_40[0i] * 64i) + cse_v13)];
      v_41[0i] = 0.000000e+00f;
      v_42[0i] = 0.000000e+00f;
      v_43[0i] = 0.000000e+00f;
      v_44[0i] = 0.000000e+00f;
      let v_61 : vec4<f32> = vec4<f32>(v_5[0i]);
      let v_62 : vec4<f32> = vec4<f32>(v_5[4i]);
      let v_63 : vec4<f32> = vec4<f32>(v_5[8i]);
      let v_64 : vec4<f32> = vec4<f32>(v_5[12i]);
      let v_65 : vec4<f32> = v_8[cse_v11];
      v_41[0i] = fma((v_65)[3], (v_61)[3], fma((v_65)[2], (v_61)[2], fma((v_65)[1], (v_61)[1], fma((v_65)[0], (v_61)[0], v_41[0i]))));
      v_42[0i] = fma((v_65)[3], (v_62)[3], fma((v_65)[2], (v_62)[2], fma((v_65)[1], (v_62)[1], fma((v_65)[0], (v_62)[0], v_42[0i]))));
      v_43[0i] = fma((v_65)[3], (v_63)[3], fma((v_65)[2], (v_63)[2], fma((v_65)[1], (v_63)[1], fma((v_65)[0], (v_63)[0], v_43[0i]))));
      v_44[0i] = fma((v_65)[3], (v_64)[3], fma((v_65)[2], (v_64)[2], fma((v_65)[1], (v_64)[1], fma((v_65)[0], (v_64)[0], v_44[0i]))));
      let v_66 : vec4<f32> = vec4<f32>(v_5[1i]);
      let v_67 : vec4<f32> = vec4<f32>(v_5[5i]);
      let v_68 : vec4<f32> = vec4<f32>(v_5[9i]);
      let v_69 : vec4<f32> = vec4<f32>(v_5[13i]);
      let v_70 : vec4<f32> = v_8[(cse_v11 + 16i)];
      v_41[0i] = fma((v_70)[3], (v_66)[3], fma((v_70)[2], (v_66)[2], fma((v_70)[1], (v_66)[1], fma((v_70)[0], (v_66)[0], v_41[0i]))));
      v_42[0i] = fma((v_70)[3], (v_67)[3], fma((v_70)[2], (v_67)[2], fma((v_70)[1], (v_67)[1], fma((v_70)[0], (v_67)[0], v_42[0i]))));
      v_43[0i] = fma((v_70)[3], (v_68)[3], fma((v_70)[2], (v_68)[2], fma((v_70)[1], (v_68)[1], fma((v_70)[0], (v_68)[0], v_43[0i]))));
      v_44[0i] = fma((v_70)[3], (v_69)[3], fma((v_70)[2], (v_69)[2], fma((v_70)[1], (v_69)[1], fma((v_70)[0], (v_69)[0], v_44[0i]))));
      let v_71 : vec4<f32> = vec4<f32>(v_5[2i]);
      let v_72 : vec4<f32> = vec4<f32>(v_5[6i]);
      let v_73 : vec4<f32> = vec4<f32>(v_5[10i]);
      let v_74 : vec4<f32> = vec4<f32>(v_5[14i]);
      let v_75 : vec4<f32> = v_8[(cse_v11 + 32i)];
      v_41[0i] = fma((v_75)[3], (v_71)[3], fma((v_75)[2], (v_71)[2], fma((v_75)[1], (v_71)[1], fma((v_75)[0], (v_71)[0], v_41[0i]))));
      v_42[0i] = fma((v_75)[3], (v_72)[3], fma((v_75)[2], (v_72)[2], fma((v_75)[1], (v_72)[1], fma((v_75)[0], (v_72)[0], v_42[0i]))));
      v_43[0i] = fma((v_75)[3], (v_73)[3], fma((v_75)[2], (v_73)[2], fma((v_75)[1], (v_73)[1], fma((v_75)[0], (v_73)[0], v_43[0i]))));
      v_44[0i] = fma((v_75)[3], (v_74)[3], fma((v_75)[2], (v_74)[2], fma((v_75)[1], (v_74)[1], fma((v_75)[0], (v_74)[0], v_44[0i]))));
      let v_76 : vec4<f32> = vec4<f32>(v_5[3i]);
      let v_77 : vec4<f32> = vec4<f32>(v_5[7i]);
      let v_78 : vec4<f32> = vec4<f32>(v_5[11i]);
      let v_79 : vec4<f32> = vec4<f32>(v_5[15i]);
      let v_80 : vec4<f32> = v_8[(cse_v11 + 48i)];
      v_41[0i] = fma((v_80)[3], (v_76)[3], fma((v_80)[2], (v_76)[2], fma((v_80)[1], (v_76)[1], fma((v_80)[0], (v_76)[0], v_41[0i]))));
      v_42[0i] = fma((v_80)[3], (v_77)[3], fma((v_80)[2], (v_77)[2], fma((v_80)[1], (v_77)[1], fma((v_80)[0], (v_77)[0], v_42[0i]))));
      v_43[0i] = fma((v_80)[3], (v_78)[3], fma((v_80)[2], (v_78)[2], fma((v_80)[1], (v_78)[1], fma((v_80)[0], (v_78)[0], v_43[0i]))));
      v_44[0i] = fma((v_80)[3], (v_79)[3], fma((v_80)[2], (v_79)[2], fma((v_80)[1], (v_79)[1], fma((v_80)[0], (v_79)[0], v_44[0i]))));
      let cse_v15 : i32 = ((cse_v1 * 17i) + cse_v11);
      v_11[cse_v15] = v_41[0i];
      v_11[(cse_v15 + 272i)] = v_42[0i];
      v_11[(cse_v15 + 544i)] = v_43[0i];
      v_11[(cse_v15 + 816i)] = v_44[0i];
      workgroupBarrier();
      if (i32(threadIdx.x) < 16i) {
        let cse_v16 : i32 = (cse_v11 * 17i);
        let v_81 : f32 = ((((v_11[cse_v16] + v_11[(cse_v16 + 1i)]) + (v_11[(cse_v16 + 2i)] + v_11[(cse_v16 + 3i)])) + ((v_11[(cse_v16 + 4i)] + v_11[(cse_v16 + 5i)]) + (v_11[(cse_v16 + 6i)] + v_11[(cse_v16 + 7i)]))) + (((v_11[(cse_v16 + 8i)] + v_11[(cse_v16 + 9i)]) + (v_11[(cse_v16 + 10i)] + v_11[(cse_v16 + 11i)])) + ((v_11[(cse_v16 + 12i)] + v_11[(cse_v16 + 13i)]) + (v_11[(cse_v16 + 14i)] + v_11[(cse_v16 + 15i)]))));
        let v_82 : f32 = ((((v_11[(cse_v16 + 272i)] + v_11[(cse_v16 + 273i)]) + (v_11[(cse_v16 + 274i)] + v_11[(cse_v16 + 275i)])) + ((v_11[(cse_v16 + 276i)] + v_11[(cse_v16 + 277i)]) + (v_11[(cse_v16 + 278i)] + v_11[(cse_v16 + 279i)]))) + (((v_11[(cse_v16 + 280i)] + v_11[(cse_v16 + 281i)]) + (v_11[(cse_v16 + 282i)] + v_11[(cse_v16 + 283i)])) + ((v_11[(cse_v16 + 284i)] + v_11[(cse_v16 + 285i)]) + (v_11[(cse_v16 + 286i)] + v_11[(cse_v16 + 287i)]))));
        let v_83 : f32 = ((((v_11[(cse_v16 + 544i)] + v_11[(cse_v16 + 545i)]) + (v_11[(cse_v16 + 546i)] + v_11[(cse_v16 + 547i)])) + ((v_11[(cse_v16 + 548i)] + v_11[(cse_v16 + 549i)]) + (v_11[(cse_v16 + 550i)] + v_11[(cse_v16 + 551i)]))) + (((v_11[(cse_v16 + 552i)] + v_11[(cse_v16 + 553i)]) + (v_11[(cse_v16 + 554i)] + v_11[(cse_v16 + 555i)])) + ((v_11[(cse_v16 + 556i)] + v_11[(cse_v16 + 557i)]) + (v_11[(cse_v16 + 558i)] + v_11[(cse_v16 + 559i)]))));
        let v_84 : f32 = ((((v_11[(cse_v16 + 816i)] + v_11[(cse_v16 + 817i)]) + (v_11[(cse_v16 + 818i)] + v_11[(cse_v16 + 819i)])) + ((v_11[(cse_v16 + 820i)] + v_11[(cse_v16 + 821i)]) + (v_11[(cse_v16 + 822i)] + v_11[(cse_v16 + 823i)]))) + (((v_11[(cse_v16 + 824i)] + v_11[(cse_v16 + 825i)]) + (v_11[(cse_v16 + 826i)] + v_11[(cse_v16 + 827i)])) + ((v_11[(cse_v16 + 828i)] + v_11[(cse_v16 + 829i)]) + (v_11[(cse_v16 + 830i)] + v_11[(cse_v16 + 831i)]))));
        v_12[0i] = vec4<f32>(select(-3.000000e+38f, v_81, ((v_24[0i] + cse_v11) < v[0i])), select(-3.000000e+38f, v_82, (((v_24[0i] + cse_v11) + 16i) < v[0i])), select(-3.000000e+38f, v_83, (((v_24[0i] + cse_v11) + 32i) < v[0i])), select(-3.000000e+38f, v_84, (((v_24[0i] + cse_v11) + 48i) < v[0i])));
        let v_85 : vec4<f32> = v_12[0i];
        v_13[cse_v11] = max(max((v_85)[0], (v_85)[1]), max((v_85)[2], (v_85)[3]));
      }
      workgroupBarrier();
      if (i32(threadIdx.x) < 16i) {
        let v_86 : f32 = max(max(max(max(v_13[0i], v_13[1i]), max(v_13[2i], v_13[3i])), max(max(v_13[4i], v_13[5i]), max(v_13[6i], v_13[7i]))), max(max(max(v_13[8i], v_13[9i]), max(v_13[10i], v_13[11i])), max(max(v_13[12i], v_13[13i]), max(v_13[14i], v_13[15i]))));
        let v_87 : f32 = max(v_3[0i], v_86);
        let v_88 : f32 = exp((v_3[0i] - v_87));
        let v_89 : vec4<f32> = v_12[0i];
        v_12[0i] = vec4<f32>(select(0.000000e+00f, exp(((v_89)[0] - v_87)), ((v_24[0i] + cse_v11) < v[0i])), select(0.000000e+00f, exp(((v_89)[1] - v_87)), (((v_24[0i] + cse_v11) + 16i) < v[0i])), select(0.000000e+00f, exp(((v_89)[2] - v_87)), (((v_24[0i] + cse_v11) + 32i) < v[0i])), select(0.000000e+00f, exp(((v_89)[3] - v_87)), (((v_24[0i] + cse_v11) + 48i) < v[0i])));
        let v_90 : vec4<f32> = v_12[0i];
        v_14[cse_v11] = v_90;
        v_3[0i] = v_87;
        v_4[0i] = fma(v_4[0i], v_88, ((((v_90)[0] + (v_90)[1]) + (v_90)[2]) + (v_90)[3]));
        if (cse_v11 == 0i) {
          v_15[0i] = v_88;
        }
      }
      workgroupBarrier();
      if ((v_60 + 1i) < v_59) {
        v_45[0i] = (min(((cse_v1 + v_24[0i]) + 64i), (v[0i] - 1i)) & 1023i);
        v_5[0i] = key_ptr[((v_45[0i] * 64i) + cse_v11)];
        v_5[1i] = key_ptr[(((v_45[0i] * 64i) + cse_v11) + 16i)];
        v_5[2i] = key_ptr[(((v_45[0i] * 64i) + cse_v11) + 32i)];
        v_5[3i] = key_ptr[(((v_45[0i] * 64i) + cse_v11) + 48i)];
        v_46[0i] = (min(((cse_v1 + v_24[0i]) + 80i), (v[0i] - 1i)) & 1023i);
        v_5[4i] = key_ptr[((v_46[0i] * 64i) + cse_v11)];
        v_5[5i] = key_ptr[(((v_46[0i] * 64i) + cse_v11) + 16i)];
        v_5[6i] = key_ptr[(((v_46[0i] * 64i) + cse_v11) + 32i)];
        v_5[7i] = key_ptr[(((v_46[0i] * 64i) + cse_v11) + 48i)];
        v_47[0i] = (min(((cse_v1 + v_24[0i]) + 96i), (v[0i] - 1i)) & 1023i);
        v_5[8i] = key_ptr[((v_47[0i] * 64i) + cse_v11)];
        v_5[9i] = key_ptr[(((v_47[0i] * 64i) + cse_v11) + 16i)];
        v_5[10i] = key_ptr[(((v_47[0i] * 64i) + cse_v11) + 32i)];
        v_5[11i] = key_ptr[(((v_47[0i] * 64i) + cse_v11) + 48i)];
        v_48[0i] = (min(((cse_v1 + v_24[0i]) + 112i), (v[0i] - 1i)) & 1023i);
        v_5[12i] = key_ptr[((v_48[0i] * 64i) + cse_v11)];
        v_5[13i] = key_ptr[(((v_48[0i] * 64i) + cse_v11) + 16i)];
        v_5[14i] = key_ptr[(((v_48[0i] * 64i) + cse_v11) + 32i)];
        v_5[15i] = key_ptr[(((v_48[0i] * 64i) + cse_v11) + 48i)];
      }
      let v_91 : f32 = v_15[0i];
      v_9[0i] = (v_9[0i] * vec4<f32>(v_91, v_91, v_91, v_91));
      let v_92 : vec4<f32> = vec4<f32>(v_10[0i]);
      let v_93 : vec4<f32> = vec4<f32>(v_10[1i]);
      let v_94 : vec4<f32> = vec4<f32>(v_10[2i]);
      let v_95 : vec4<f32> = vec4<f32>(v_10[3i]);
      let v_96 : vec4<f32> = v_14[cse_v8];
      v_9[0i] = fma(vec4<f32>((v_96)[3], (v_96)[3], (v_96)[3], (v_96)[3]), v_95, fma(vec4<f32>((v_96)[2], (v_96)[2], (v_96)[2], (v_96)[2]), v_94, fma(vec4<f32>((v_96)[1], (v_96)[1], (v_96)[1], (v_96)[1]), v_93, fma(vec4<f32>((v_96)[0], (v_96)[0], (v_96)[0], (v_96)[0]), v_92, v_9[0i]))));
      let v_97 : vec4<f32> = vec4<f32>(v_10[4i]);
      let v_98 : vec4<f32> = vec4<f32>(v_10[5i]);
      let v_99 : vec4<f32> = vec4<f32>(v_10[6i]);
      let v_100 : vec4<f32> = vec4<f32>(v_10[7i]);
      let v_101 : vec4<f32> = v_14[(cse_v8 + 1i)];
      v_9[0i] = fma(vec4<f32>((v_101)[3], (v_101)[3], (v_101)[3], (v_101)[3]), v_100, fma(vec4<f32>((v_101)[2], (v_101)[2], (v_101)[2], (v_101)[2]), v_99, fma(vec4<f32>((v_101)[1], (v_101)[1], (v_101)[1], (v_101)[1]), v_98, fma(vec4<f32>((v_101)[0], (v_101)[0], (v_101)[0], (v_101)[0]), v_97, v_9[0i]))));
      let v_102 : vec4<f32> = vec4<f32>(v_10[8i]);
      let v_103 : vec4<f32> = vec4<f32>(v_10[9i]);
      let v_104 : vec4<f32> = vec4<f32>(v_10[10i]);
      let v_105 : vec4<f32> = vec4<f32>(v_10[11i]);
      let v_106 : vec4<f32> = v_14[(cse_v8 + 2i)];
      v_9[0i] = fma(vec4<f32>((v_106)[3], (v_106)[3], (v_106)[3], (v_106)[3]), v_105, fma(vec4<f32>((v_106)[2], (v_106)[2], (v_106)[2], (v_106)[2]), v_104, fma(vec4<f32>((v_106)[1], (v_106)[1], (v_106)[1], (v_106)[1]), v_103, fma(vec4<f32>((v_106)[0], (v_106)[0], (v_106)[0], (v_106)[0]), v_102, v_9[0i]))));
      let v_107 : vec4<f32> = vec4<f32>(v_10[12i]);
      let v_108 : vec4<f32> = vec4<f32>(v_10[13i]);
      let v_109 : vec4<f32> = vec4<f32>(v_10[14i]);
      let v_110 : vec4<f32> = vec4<f32>(v_10[15i]);
      let v_111 : vec4<f32> = v_14[(cse_v8 + 3i)];
      v_9[0i] = fma(vec4<f32>((v_111)[3], (v_111)[3], (v_111)[3], (v_111)[3]), v_110, fma(vec4<f32>((v_111)[2], (v_111)[2], (v_111)[2], (v_111)[2]), v_109, fma(vec4<f32>((v_111)[1], (v_111)[1], (v_111)[1], (v_111)[1]), v_108, fma(vec4<f32>((v_111)[0], (v_111)[0], (v_111)[0], (v_111)[0]), v_107, v_9[0i]))));
    }
    if (i32(threadIdx.x) < 16i) {
      v_13[cse_v11] = v_4[0i];
    }
    if (cse_v5 == 1i) {
      v_8[cse_v13] = v_9[0i];
    }
    if (cse_v5 == 2i) {
      v_16[cse_v13] = v_9[0i];
    }
    if (cse_v5 == 3i) {
      v_17[cse_v13] = v_9[0i];
    }
    workgroupBarrier();
    if (cse_v5 == 0i) {
      let v_112 : f32 = ((((v_13[0i] + v_13[1i]) + (v_13[2i] + v_13[3i])) + ((v_13[4i] + v_13[5i]) + (v_13[6i] + v_13[7i]))) + (((v_13[8i] + v_13[9i]) + (v_13[10i] + v_13[11i])) + ((v_13[12i] + v_13[13i]) + (v_13[14i] + v_13[15i]))));
      o_partial_ptr[(cse_v9 + cse_v13)] = vec4<f16>(((((v_9[0i] + v_8[cse_v13]) + v_16[cse_v13]) + v_17[cse_v13]) * vec4<f32>((1.000000e+00f / v_112), (1.000000e+00f / v_112), (1.000000e+00f / v_112), (1.000000e+00f / v_112))));
    }
    if ((i32(threadIdx.x) < 16i) & ((i32(threadIdx.x) % 16i) == 0i)) {
      split_lse_ptr[cse_v10] = v_3[0i];
      let v_113 : f32 = ((((v_13[0i] + v_13[1i]) + (v_13[2i] + v_13[3i])) + ((v_13[4i] + v_13[5i]) + (v_13[6i] + v_13[7i]))) + (((v_13[8i] + v_13[9i]) + (v_13[10i] + v_13[11i])) + ((v_13[12i] + v_13[13i]) + (v_13[14i] + v_13[15i]))));
      split_lse_ptr[cse_v14] = v_113;
    }
  } else {
    if (i32(threadIdx.x) < 64i) {
      o_partial_ptr[(cse_v9 + i32(threadIdx.x))] = vec4<f16>(0.000000e+00h, 0.000000e+00h, 0.000000e+00h, 0.000000e+00h);
    }
    if (i32(threadIdx.x) < 1i) {
      split_lse_ptr[cse_v10] = -3.000000e+38f;
      split_lse_ptr[cse_v14] = 0.000000e+00f;
    }
  }
}


