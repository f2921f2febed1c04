//----------------------------------------
@group(0) @binding(0) var<storage, read> counts_ptr : array<i32>;
@group(0) @binding(1) var<storage, read> masses_ptr : array<f32>;
@group(0) @binding(2) var<storage, read> ordered_ptr : array<f32>;
@group(0) @binding(3) var<storage, read> probs_ptr : array<f32>;
@group(0) @binding(4) var<storage, read> sums_ptr : array<f32>;
@group(0) @binding(5) var<storage, read_write> token_ptr : array<i32>;
@group(0) @binding(6) var<storage, read> top_p_ptr : array<f32>;
@group(0) @binding(7) var<storage, read> uniform_ptr : array<f32>;

struct PODArgs {
  packGridDimX: u32
}
@group(0) @binding(8) var<uniform> podArgs : PODArgs;

var<workgroup> v_16 : array<f32, 1>;
var<workgroup> v_18 : array<f32, 256>;
var<workgroup> v_19 : array<f32, 256>;
var<workgroup> v_42 : array<f32, 256>;
var<workgroup> v_43 : array<f32, 256>;
var<workgroup> v_44 : array<f32, 256>;
var<workgroup> v_45 : array<f32, 256>;
var<workgroup> v_46 : array<f32, 256>;
var<workgroup> v_55 : array<i32, 256>;
var<workgroup> v_56 : array<i32, 16>;
@compute @workgroup_size(256, 1, 1)
fn snapshot_kernel(
  @builtin(workgroup_id) blockIdx : vec3<u32>,
  @builtin(num_workgroups) gridDim : vec3<u32>,
  @builtin(local_invocation_id) threadIdx : vec3<u32>
) {
  if (blockIdx.z * gridDim.x + blockIdx.x > podArgs.packGridDimX) { return; }
  let v__1 : i32 = i32(blockIdx.z * gridDim.x + blockIdx.x);
  var v : array<f32, 1>;
  var v_1 : array<f32, 1>;
  var v_2 : array<f32, 1>;
  var v_3 : array<f32, 1>;
  var v_4 : array<f32, 1>;
  var v_5 : array<f32, 1>;
  var v_6 : array<f32, 1>;
  var v_7 : array<f32, 1>;
  var v_8 : array<f32, 1>;
  var v_9 : array<f32, 1>;
  var v_10 : array<f32, 1>;
  var v_11 : array<f32, 1>;
  var v_12 : array<f32, 1>;
  var v_13 : array<f32, 1>;
  var v_14 : array<f32, 1>;
  var v_15 : array<f32, 1>;
  var v_17 : array<f32, 1>;
  var v_20 : array<f32, 1>;
  var v_21 : array<f32, 1>;
  var v_22 : array<i32, 1>;
  var v_23 : array<i32, 1>;
  var v_24 : array<f32, 1>;
  var v_25 : array<i32, 1>;
  var v_26 : array<i32, 1>;
  var v_27 : array<i32, 1>;
  var v_28 : array<i32, 1>;
  var v_29 : array<f32, 1>;
  var v_30 : array<i32, 1>;
  var v_31 : array<f32, 1>;
  var v_32 : array<i32, 1>;
  var v_33 : array<f32, 1>;
  var v_34 : array<i32, 1>;
  var v_35 : array<f32, 1>;
  var v_36 : array<i32, 1>;
  var v_37 : array<f32, 1>;
  var v_38 : array<i32, 1>;
  var v_39 : array<f32, 1>;
  var v_40 : array<i32, 1>;
  var v_41 : array<f32, 1>;
  var v_47 : array<i32, 1>;
  var v_48 : array<f32, 1>;
  var v_49 : array<f32, 1>;
  var v_50 : array<i32, 1>;
  var v_51 : array<i32, 1>;
  var v_52 : array<i32, 1>;
  var v_53 : array<f32, 1>;
  var v_54 : array<i32, 1>;
  var v_57 : array<f32, 1>;
  var v_58 : array<i32, 1>;
  var v_59 : array<f32, 1>;
  var v_60 : array<i32, 1>;
  var v_61 : array<f32, 1>;
  var v_62 : array<i32, 1>;
  var v_63 : array<f32, 1>;
  var v_64 : array<i32, 1>;
  v[0i] = 0.000000e+00f;
  v_1[0i] = 0.000000e+00f;
  v_2[0i] = 0.000000e+00f;
  v_3[0i] = 0.000000e+00f;
  v_4[0i] = 0.000000e+00f;
  v_5[0i] = 0.000000e+00f;
  v_6[0i] = 0.000000e+00f;
  v_7[0i] = 0.000000e+00f;
  v_8[0i] = 0.000000e+00f;
  v_9[0i] = 0.000000e+00f;
  v_10[0i] = 0.000000e+00f;
  v_11[0i] = 0.000000e+00f;
  v_12[0i] = 0.000000e+00f;
  v_13[0i] = 0.000000e+00f;
  v_14[0i] = 0.000000e+00f;
  v_15[0i] = 0.000000e+00f;
  for (var v_65 : i32 = 0i; v_65 < 8i; v_65++) {
    let cse_v15 : i32 = ((v_65 * 4096i) + i32(threadIdx.x));
    let v_66 : f32 = masses_ptr[cse_v15];
    let v_67 : f32 = masses_ptr[(cse_v15 + 256i)];
    let v_68 : f32 = masses_ptr[(cse_v15 + 512i)];
    let v_69 : f32 = masses_ptr[(cse_v15 + 768i)];
    let v_70 : f32 = masses_ptr[(cse_v15 + 1024i)];
    let v_71 : f32 = masses_ptr[(cse_v15 + 1280i)];
    let v_72 : f32 = masses_ptr[(cse_v15 + 1536i)];
    let v_73 : f32 = masses_ptr[(cse_v15 + 1792i)];
    let v_74 : f32 = masses_ptr[(cse_v15 + 2048i)];
    let v_75 : f32 = masses_ptr[(cse_v15 + 2304i)];
    let v_76 : f32 = masses_ptr[(cse_v15 + 2560i)];
    let v_77 : f32 = masses_ptr[(cse_v15 + 2816i)];
    let v_78 : f32 = masses_ptr[(cse_v15 + 3072i)];
    let v_79 : f32 = masses_ptr[(cse_v15 + 3328i)];
    let v_80 : f32 = masses_ptr[(cse_v15 + 3584i)];
    let v_81 : f32 = masses_ptr[(cse_v15 + 3840i)];
    v[0i] = (v[0i] + v_66);
    v_1[0i] = (v_1[0i] + v_67);
    v_2[0i] = (v_2[0i] + v_68);
    v_3[0i] = (v_3[0i] + v_69);
    v_4[0i] = (v_4[0i] + v_70);
    v_5[0i] = (v_5[0i] + v_71);
    v_6[0i] = (v_6[0i] + v_72);
    v_7[0i] = (v_7[0i] + v_73);
    v_8[0i] = (v_8[0i] + v_74);
    v_9[0i] = (v_9[0i] + v_75);
    v_10[0i] = (v_10[0i] + v_76);
    v_11[0i] = (v_11[0i] + v_77);
    v_12[0i] = (v_12[0i] + v_78);
    v_13[0i] = (v_13[0i] + v_79);
    v_14[0i] = (v_14[0i] + v_80);
    v_15[0i] = (v_15[0i] + v_81);
  }
  let v_82 : f32 = (((((((((((((((v[0i] + v_1[0i]) + v_2[0i]) + v_3[0i]) + v_4[0i]) + v_5[0i]) + v_6[0i]) + v_7[0i]) + v_8[0i]) + v_9[0i]) + v_10[0i]) + v_11[0i]) + v_12[0i]) + v_13[0i]) + v_14[0i]) + v_15[0i]);
  if (i32(threadIdx.x) == 0i) {
    v_16[0i] = v_82;
  }
  workgroupBarrier();
  let v_83 : f32 = min(top_p_ptr[0i], v_16[0i]);
  v_17[0i] = 0.000000e+00f;
  v_17[0i] = max(v_17[0i], select(0.000000e+00f, f32(i32(threadIdx.x)), ((v_83 <= v_82) & (0.000000e+00f < v_82))));
  workgroupBarrier();
  v_18[i32(threadIdx.x)] = v_17[0i];
  workgroupBarrier();
  if (i32(threadIdx.x) < 16i) {
    v_20[0i] = v_18[i32(threadIdx.x)];
    for (var v_84 : i32 = 0i; v_84 < 15i; v_84++) {
      v_20[0i] = max(v_20[0i], v_18[(((v_84 * 16i) + i32(threadIdx.x)) + 16i)]);
    }
    v_19[i32(threadIdx.x)] = v_20[0i];
  }
  workgroupBarrier();
  v_21[0i] = v_19[0i];
  for (var v_85 : i32 = 0i; v_85 < 15i; v_85++) {
    v_21[0i] = max(v_21[0i], v_19[(v_85 + 1i)]);
  }
  let v_86 : f32 = v_21[0i];
  let cse_v1 : i32 = min(i32(threadIdx.x), 127i);
  let cse_v2 : i32 = i32(v_86);
  let cse_v16 : i32 = (cse_v1 * 256i);
  let v_87 : i32 = counts_ptr[(cse_v16 + cse_v2)];
  let cse_v17 : i32 = (cse_v2 + 1i);
  let cse_v23 : i32 = (cse_v16 + min(cse_v17, 255i));
  let v_88 : i32 = counts_ptr[cse_v23];
  let v_89 : f32 = masses_ptr[cse_v23];
  v_22[0i] = select(0i, v_87, (i32(threadIdx.x) <= 127i));
  v_23[0i] = select(0i, v_88, ((i32(threadIdx.x) <= 127i) && (cse_v2 < 255i)));
  v_24[0i] = select(0.000000e+00f, v_89, ((i32(threadIdx.x) <= 127i) && (cse_v2 < 255i)));
  v_25[0i] = (cse_v2<<22u);
  v_26[0i] = (cse_v17<<22u);
  v_27[0i] = 0i;
  for (var v_90 : i32 = 0i; v_90 < 8i; v_90++) {
    let v_91 : i32 = v_25[0i];
    let v_92 : i32 = v_26[0i];
    let v_93 : i32 = v_23[0i];
    let v_94 : i32 = v_22[0i];
    v_28[0i] = v_93;
    v_29[0i] = v_24[0i];
    v_30[0i] = v_93;
    v_31[0i] = v_24[0i];
    v_32[0i] = v_93;
    v_33[0i] = v_24[0i];
    v_34[0i] = v_93;
    v_35[0i] = v_24[0i];
    v_36[0i] = v_93;
    v_37[0i] = v_24[0i];
    v_38[0i] = v_93;
    v_39[0i] = v_24[0i];
    v_40[0i] = v_93;
    v_41[0i] = v_24[0i];
    let cse_v21 : i32 = (1i<<u32((21i - (v_90 * 3i))));
    let cse_v24 : i32 = (v_91 + cse_v21);
    let cse_v25 : i32 = ((cse_v21 * 2i) + v_91);
    let cse_v26 : i32 = ((cse_v21 * 3i) + v_91);
    let cse_v27 : i32 = ((cse_v21 * 4i) + v_91);
    let cse_v28 : i32 = ((cse_v21 * 5i) + v_91);
    let cse_v29 : i32 = ((cse_v21 * 6i) + v_91);
    let cse_v30 : i32 = ((cse_v21 * 7i) + v_91);
    if (v_93 < v_94) {
      let cse_v18 : i32 = (cse_v1 * 2048i);
      for (var v_95 : i32 = 0i; v_95 < 12i; v_95++) {
        let cse_v3 : i32 = (2048i>>u32(v_95));
        if (cse_v3 <= (v_94 - v_93)) {
          let v_96 : i32 = ((v_28[0i] + cse_v3) - 1i);
          let v_97 : i32 = ((v_30[0i] + cse_v3) - 1i);
          let v_98 : i32 = ((v_32[0i] + cse_v3) - 1i);
          let v_99 : i32 = ((v_34[0i] + cse_v3) - 1i);
          let v_100 : i32 = ((v_36[0i] + cse_v3) - 1i);
          let v_101 : i32 = ((v_38[0i] + cse_v3) - 1i);
          let v_102 : i32 = ((v_40[0i] + cse_v3) - 1i);
          let v_103 : f32 = ordered_ptr[(cse_v18 + min(v_96, 2047i))];
          let v_104 : f32 = ordered_ptr[(cse_v18 + min(v_97, 2047i))];
          let v_105 : f32 = ordered_ptr[(cse_v18 + min(v_98, 2047i))];
          let v_106 : f32 = ordered_ptr[(cse_v18 + min(v_99, 2047i))];
          let v_107 : f32 = ordered_ptr[(cse_v18 + min(v_100, 2047i))];
          let v_108 : f32 = ordered_ptr[(cse_v18 + min(v_101, 2047i))];
          let v_109 : f32 = ordered_ptr[(cse_v18 + min(v_102, 2047i))];
          v_28[0i] = (v_28[0i] + select(0i, cse_v3, ((v_96 < v_94) && (cse_v24 <= bitcast<i32>(v_103)))));
          v_30[0i] = (v_30[0i] + select(0i, cse_v3, ((v_97 < v_94) && (cse_v25 <= bitcast<i32>(v_104)))));
          v_32[0i] = (v_32[0i] + select(0i, cse_v3, ((v_98 < v_94) && (cse_v26 <= bitcast<i32>(v_105)))));
          v_34[0i] = (v_34[0i] + select(0i, cse_v3, ((v_99 < v_94) && (cse_v27 <= bitcast<i32>(v_106)))));
          v_36[0i] = (v_36[0i] + select(0i, cse_v3, ((v_100 < v_94) && (cse_v28 <= bitcast<i32>(v_107)))));
          v_38[0i] = (v_38[0i] + select(0i, cse_v3, ((v_101 < v_94) && (cse_v29 <= bitcast<i32>(v_108)))));
          v_40[0i] = (v_40[0i] + select(0i, cse_v3, ((v_102 < v_94) && (cse_v30 <= bitcast<i32>(v_109)))));
        }
      }
      let v_110 : f32 = sums_ptr[(cse_v18 + max((v_28[0i] - 1i), 0i))];
      let v_111 : f32 = sums_ptr[(cse_v18 + max((v_30[0i] - 1i), 0i))];
      let v_112 : f32 = sums_ptr[(cse_v18 + max((v_32[0i] - 1i), 0i))];
      let v_113 : f32 = sums_ptr[(cse_v18 + max((v_34[0i] - 1i), 0i))];
      let v_114 : f32 = sums_ptr[(cse_v18 + max((v_36[0i] - 1i), 0i))];
      let v_115 : f32 = sums_ptr[(cse_v18 + max((v_38[0i] - 1i), 0i))];
      let v_116 : f32 = sums_ptr[(cse_v18 + max((v_40[0i] - 1i), 0i))];
      v_29[0i] = select(0.000000e+00f, v_110, (0i < v_28[0i]));
      v_31[0i] = select(0.000000e+00f, v_111, (0i < v_30[0i]));
      v_33[0i] = select(0.000000e+00f, v_112, (0i < v_32[0i]));
      v_35[0i] = select(0.000000e+00f, v_113, (0i < v_34[0i]));
      v_37[0i] = select(0.000000e+00f, v_114, (0i < v_36[0i]));
      v_39[0i] = select(0.000000e+00f, v_115, (0i < v_38[0i]));
      v_41[0i] = select(0.000000e+00f, v_116, (0i < v_40[0i]));
    }
    workgroupBarrier();
    v_27[0i] = 0i;
    v_18[i32(threadIdx.x)] = v_29[0i];
    v_19[i32(threadIdx.x)] = v_31[0i];
    v_42[i32(threadIdx.x)] = v_33[0i];
    v_43[i32(threadIdx.x)] = v_35[0i];
    v_44[i32(threadIdx.x)] = v_37[0i];
    v_45[i32(threadIdx.x)] = v_39[0i];
    v_46[i32(threadIdx.x)] = v_41[0i];
    workgroupBarrier();
    if (i32(threadIdx.x) < 128i) {
      let cse_v4 : i32 = (i32(threadIdx.x) + 128i);
      v_18[i32(threadIdx.x)] = (v_18[i32(threadIdx.x)] + v_18[cse_v4]);
      v_19[i32(threadIdx.x)] = (v_19[i32(threadIdx.x)] + v_19[cse_v4]);
      v_42[i32(threadIdx.x)] = (v_42[i32(threadIdx.x)] + v_42[cse_v4]);
      v_43[i32(threadIdx.x)] = (v_43[i32(threadIdx.x)] + v_43[cse_v4]);
      v_44[i32(threadIdx.x)] = (v_44[i32(threadIdx.x)] + v_44[cse_v4]);
      v_45[i32(threadIdx.x)] = (v_45[i32(threadIdx.x)] + v_45[cse_v4]);
      v_46[i32(threadIdx.x)] = (v_46[i32(threadIdx.x)] + v_46[cse_v4]);
    }
    workgroupBarrier();
    if (i32(threadIdx.x) < 64i) {
      let cse_v5 : i32 = (i32(threadIdx.x) + 64i);
      v_18[i32(threadIdx.x)] = (v_18[i32(threadIdx.x)] + v_18[cse_v5]);
      v_19[i32(threadIdx.x)] = (v_19[i32(threadIdx.x)] + v_19[cse_v5]);
      v_42[i32(threadIdx.x)] = (v_42[i32(threadIdx.x)] + v_42[cse_v5]);
      v_43[i32(threadIdx.x)] = (v_43[i32(threadIdx.x)] + v_43[cse_v5]);
      v_44[i32(threadIdx.x)] = (v_44[i32(threadIdx.x)] + v_44[cse_v5]);
      v_45[i32(threadIdx.x)] = (v_45[i32(threadIdx.x)] + v_45[cse_v5]);
      v_46[i32(threadIdx.x)] = (v_46[i32(threadIdx.x)] + v_46[cse_v5]);
    }
    workgroupBarrier();
    if (i32(threadIdx.x) < 32i) {
      let cse_v6 : i32 = (i32(threadIdx.x) + 32i);
      v_18[i32(threadIdx.x)] = (v_18[i32(threadIdx.x)] + v_18[cse_v6]);
      v_19[i32(threadIdx.x)] = (v_19[i32(threadIdx.x)] + v_19[cse_v6]);
      v_42[i32(threadIdx.x)] = (v_42[i32(threadIdx.x)] + v_42[cse_v6]);
      v_43[i32(threadIdx.x)] = (v_43[i32(threadIdx.x)] + v_43[cse_v6]);
      v_44[i32(threadIdx.x)] = (v_44[i32(threadIdx.x)] + v_44[cse_v6]);
      v_45[i32(threadIdx.x)] = (v_45[i32(threadIdx.x)] + v_45[cse_v6]);
      v_46[i32(threadIdx.x)] = (v_46[i32(threadIdx.x)] + v_46[cse_v6]);
    }
    workgroupBarrier();
    if (i32(threadIdx.x) < 16i) {
      let cse_v7 : i32 = (i32(threadIdx.x) + 16i);
      v_18[i32(threadIdx.x)] = (v_18[i32(threadIdx.x)] + v_18[cse_v7]);
      v_19[i32(threadIdx.x)] = (v_19[i32(threadIdx.x)] + v_19[cse_v7]);
      v_42[i32(threadIdx.x)] = (v_42[i32(threadIdx.x)] + v_42[cse_v7]);
      v_43[i32(threadIdx.x)] = (v_43[i32(threadIdx.x)] + v_43[cse_v7]);
      v_44[i32(threadIdx.x)] = (v_44[i32(threadIdx.x)] + v_44[cse_v7]);
      v_45[i32(threadIdx.x)] = (v_45[i32(threadIdx.x)] + v_45[cse_v7]);
      v_46[i32(threadIdx.x)] = (v_46[i32(threadIdx.x)] + v_46[cse_v7]);
    }
    workgroupBarrier();
    if (i32(threadIdx.x) < 8i) {
      let cse_v8 : i32 = (i32(threadIdx.x) + 8i);
      v_18[i32(threadIdx.x)] = (v_18[i32(threadIdx.x)] + v_18[cse_v8]);
      v_19[i32(threadIdx.x)] = (v_19[i32(threadIdx.x)] + v_19[cse_v8]);
      v_42[i32(threadIdx.x)] = (v_42[i32(threadIdx.x)] + v_42[cse_v8]);
      v_43[i32(threadIdx.x)] = (v_43[i32(threadIdx.x)] + v_43[cse_v8]);
      v_44[i32(threadIdx.x)] = (v_44[i32(threadIdx.x)] + v_44[cse_v8]);
      v_45[i32(threadIdx.x)] = (v_45[i32(threadIdx.x)] + v_45[cse_v8]);
      v_46[i32(threadIdx.x)] = (v_46[i32(threadIdx.x)] + v_46[cse_v8]);
    }
    workgroupBarrier();
    if (i32(threadIdx.x) < 4i) {
      let cse_v9 : i32 = (i32(threadIdx.x) + 4i);
      v_18[i32(threadIdx.x)] = (v_18[i32(threadIdx.x)] + v_18[cse_v9]);
      v_19[i32(threadIdx.x)] = (v_19[i32(threadIdx.x)] + v_19[cse_v9]);
      v_42[i32(threadIdx.x)] = (v_42[i32(threadIdx.x)] + v_42[cse_v9]);
      v_43[i32(threadIdx.x)] = (v_43[i32(threadIdx.x)] + v_43[cse_v9]);
      v_44[i32(threadIdx.x)] = (v_44[i32(threadIdx.x)] + v_44[cse_v9]);
      v_45[i32(threadIdx.x)] = (v_45[i32(threadIdx.x)] + v_45[cse_v9]);
      v_46[i32(threadIdx.x)] = (v_46[i32(threadIdx.x)] + v_46[cse_v9]);
    }
    workgroupBarrier();
    if (i32(threadIdx.x) < 2i) {
      let cse_v10 : i32 = (i32(threadIdx.x) + 2i);
      v_18[i32(threadIdx.x)] = (v_18[i32(threadIdx.x)] + v_18[cse_v10]);
      v_19[i32(threadIdx.x)] = (v_19[i32(threadIdx.x)] + v_19[cse_v10]);
      v_42[i32(threadIdx.x)] = (v_42[i32(threadIdx.x)] + v_42[cse_v10]);
      v_43[i32(threadIdx.x)] = (v_43[i32(threadIdx.x)] + v_43[cse_v10]);
      v_44[i32(threadIdx.x)] = (v_44[i32(threadIdx.x)] + v_44[cse_v10]);
      v_45[i32(threadIdx.x)] = (v_45[i32(threadIdx.x)] + v_45[cse_v10]);
      v_46[i32(threadIdx.x)] = (v_46[i32(threadIdx.x)] + v_46[cse_v10]);
    }
    workgroupBarrier();
    if (i32(threadIdx.x) < 1i) {
      v_18[0i] = (v_18[0i] + v_18[1i]);
      v_19[0i] = (v_19[0i] + v_19[1i]);
      v_42[0i] = (v_42[0i] + v_42[1i]);
      v_43[0i] = (v_43[0i] + v_43[1i]);
      v_44[0i] = (v_44[0i] + v_44[1i]);
      v_45[0i] = (v_45[0i] + v_45[1i]);
      v_46[0i] = (v_46[0i] + v_46[1i]);
    }
    workgroupBarrier();
    let v_117 : f32 = v_18[0i];
    if ((cse_v24 < v_92) & ((v_83 <= v_117) & (0.000000e+00f < v_117))) {
      v_27[0i] = 1i;
    }
    let v_118 : f32 = v_19[0i];
    if ((cse_v25 < v_92) & ((v_83 <= v_118) & (0.000000e+00f < v_118))) {
      v_27[0i] = 2i;
    }
    let v_119 : f32 = v_42[0i];
    if ((cse_v26 < v_92) & ((v_83 <= v_119) & (0.000000e+00f < v_119))) {
      v_27[0i] = 3i;
    }
    let v_120 : f32 = v_43[0i];
    if ((cse_v27 < v_92) & ((v_83 <= v_120) & (0.000000e+00f < v_120))) {
      v_27[0i] = 4i;
    }
    let v_121 : f32 = v_44[0i];
    if ((cse_v28 < v_92) & ((v_83 <= v_121) & (0.000000e+00f < v_121))) {
      v_27[0i] = 5i;
    }
    let v_122 : f32 = v_45[0i];
    if ((cse_v29 < v_92) & ((v_83 <= v_122) & (0.000000e+00f < v_122))) {
      v_27[0i] = 6i;
    }
    let v_123 : f32 = v_46[0i];
    if ((cse_v30 < v_92) & ((v_83 <= v_123) & (0.000000e+00f < v_123))) {
      v_27[0i] = 7i;
    }
    let v_124 : i32 = v_27[0i];
    if (v_124 == 0i) {
      v_23[0i] = v_28[0i];
      v_24[0i] = v_29[0i];
    }
    if (v_124 == 1i) {
      v_22[0i] = v_28[0i];
    }
    if (v_124 == 1i) {
      v_23[0i] = v_30[0i];
      v_24[0i] = v_31[0i];
    }
    if (v_124 == 2i) {
      v_22[0i] = v_30[0i];
    }
    if (v_124 == 2i) {
      v_23[0i] = v_32[0i];
      v_24[0i] = v_33[0i];
    }
    if (v_124 == 3i) {
      v_22[0i] = v_32[0i];
    }
    if (v_124 == 3i) {
      v_23[0i] = v_34[0i];
      v_24[0i] = v_35[0i];
    }
    if (v_124 == 4i) {
      v_22[0i] = v_34[0i];
    }
    if (v_124 == 4i) {
      v_23[0i] = v_36[0i];
      v_24[0i] = v_37[0i];
    }
    if (v_124 == 5i) {
      v_22[0i] = v_36[0i];
    }
    if (v_124 == 5i) {
      v_23[0i] = v_38[0i];
      v_24[0i] = v_39[0i];
    }
    if (v_124 == 6i) {
      v_22[0i] = v_38[0i];
    }
    if (v_124 == 6i) {
      v_23[0i] = v_40[0i];
      v_24[0i] = v_41[0i];
    }
    if (v_124 == 7i) {
      v_22[0i] = v_40[0i];
    }
    v_25[0i] = (v_91 + (v_124 * cse_v21));
    v_26[0i] = min(v_92, (v_91 + ((v_124 + 1i) * cse_v21)));
  }
  let v_125 : i32 = v_25[0i];
  v_47[0i] = 0i;
  v_48[0i] = 0.000000e+00f;
  v_49[0i] = 0.000000e+00f;
  v_50[0i] = 0i;
  v_51[0i] = 0i;
  v_52[0i] = 0i;
  v_53[0i] = 0.000000e+00f;
  v_54[0i] = 0i;
  workgroupBarrier();
  v_18[i32(threadIdx.x)] = v_24[0i];
  v_55[i32(threadIdx.x)] = (v_22[0i] - v_23[0i]);
  workgroupBarrier();
  let cse_v11 : i32 = (i32(threadIdx.x) * 16i);
  if (i32(threadIdx.x) < 16i) {
    v_57[0i] = 0.000000e+00f;
    v_58[0i] = 0i;
    for (var v_126 : i32 = 0i; v_126 < 16i; v_126++) {
      let cse_v19 : i32 = (cse_v11 + v_126);
      v_57[0i] = (v_57[0i] + v_18[cse_v19]);
      v_58[0i] = (v_58[0i] + v_55[cse_v19]);
    }
    v_19[i32(threadIdx.x)] = v_57[0i];
    v_56[i32(threadIdx.x)] = v_58[0i];
  }
  workgroupBarrier();
  v_59[0i] = 0.000000e+00f;
  v_60[0i] = 0i;
  for (var v_127 : i32 = 0i; v_127 < 16i; v_127++) {
    v_59[0i] = (v_59[0i] + v_19[v_127]);
    v_60[0i] = (v_60[0i] + v_56[v_127]);
  }
  if (0.000000e+00f < bitcast<f32>(v_125)) {
    v_47[0i] = i32(min(max(ceil((max((v_83 - v_59[0i]), 0.000000e+00f) / bitcast<f32>(v_125))), 1.000000e+00f), f32(v_60[0i])));
  }
  v_48[0i] = (uniform_ptr[0i] * fma(bitcast<f32>(v_125), f32(v_47[0i]), v_59[0i]));
  v_52[0i] = 0i;
  for (var v_128 : i32 = 0i; v_128 < 16i; v_128++) {
    let v_129 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), v_56[v_128])), v_19[v_128]);
    if (v_52[0i] == 0i) {
      if (0.000000e+00f < v_129) {
        v_51[0i] = v_128;
        v_53[0i] = v_49[0i];
        v_54[0i] = v_50[0i];
        if (v_48[0i] < (v_49[0i] + v_129)) {
          v_52[0i] = 1i;
        }
      }
      v_49[0i] = (v_49[0i] + v_129);
      v_50[0i] = (v_50[0i] + v_56[v_128]);
    }
  }
  v_49[0i] = v_53[0i];
  v_50[0i] = v_54[0i];
  let v_130 : i32 = (v_51[0i] * 16i);
  v_52[0i] = 0i;
  for (var v_131 : i32 = 0i; v_131 < 16i; v_131++) {
    let cse_v12 : i32 = (v_131 + v_130);
    let v_132 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), v_55[cse_v12])), v_18[cse_v12]);
    if (v_52[0i] == 0i) {
      if (0.000000e+00f < v_132) {
        v_51[0i] = (v_130 + v_131);
        v_53[0i] = v_49[0i];
        v_54[0i] = v_50[0i];
        if (v_48[0i] < (v_49[0i] + v_132)) {
          v_52[0i] = 1i;
        }
      }
      v_49[0i] = (v_49[0i] + v_132);
      v_50[0i] = (v_50[0i] + v_55[cse_v12]);
    }
  }
  v_49[0i] = v_53[0i];
  v_50[0i] = v_54[0i];
  let v_133 : i32 = (v_51[0i] * 2048i);
  v_61[0i] = 0.000000e+00f;
  v_62[0i] = 0i;
  let cse_v13 : i32 = (v_133>>2u);
  for (var v_134 : i32 = 0i; v_134 < 2i; v_134++) {
    if ((((cse_v13 + v_134)>>1u) + i32(threadIdx.x)) < 32768i) {
            let v__2 : i32 = (((i32(threadIdx.x) * 8i) + (v_134 * 4i)) + v_133);
let v_135 : vec4<f32> = vec4<f32>(probs_ptr[v__2 + 0], probs_ptr[v__2 + 1], probs_ptr[v__2 + 2], probs_ptr[v__2 + 3]);
      v_61[0i] = (v_61[0i] + select(0.000000e+00f, (v_135)[0], (v_125 < bitcast<i32>((v_135)[0]))));
      v_62[0i] = (v_62[0i] + select(0i, 1i, (bitcast<i32>((v_135)[0]) == v_125)));
      v_61[0i] = (v_61[0i] + select(0.000000e+00f, (v_135)[1], (v_125 < bitcast<i32>((v_135)[1]))));
      v_62[0i] = (v_62[0i] + select(0i, 1i, (bitcast<i32>((v_135)[1]) == v_125)));
      v_61[0i] = (v_61[0i] + select(0.000000e+00f, (v_135)[2], (v_125 < bitcast<i32>((v_135)[2]))));
      v_62[0i] = (v_62[0i] + select(0i, 1i, (bitcast<i32>((v_135)[2]) == v_125)));
      v_61[0i] = (v_61[0i] + select(0.000000e+00f, (v_135)[3], (v_125 < bitcast<i32>((v_135)[3]))));
      v_62[0i] = (v_62[0i] + select(0i, 1i, (bitcast<i32>((v_135)[3]) == v_125)));
    }
  }
  workgroupBarrier();
  v_18[i32(threadIdx.x)] = v_61[0i];
  v_55[i32(threadIdx.x)] = v_62[0i];
  workgroupBarrier();
  if (i32(threadIdx.x) < 16i) {
    v_63[0i] = 0.000000e+00f;
    v_64[0i] = 0i;
    for (var v_136 : i32 = 0i; v_136 < 16i; v_136++) {
      let cse_v20 : i32 = (cse_v11 + v_136);
      v_63[0i] = (v_63[0i] + v_18[cse_v20]);
      v_64[0i] = (v_64[0i] + v_55[cse_v20]);
    }
    v_19[i32(threadIdx.x)] = v_63[0i];
    v_56[i32(threadIdx.x)] = v_64[0i];
  }
  workgroupBarrier();
  v_52[0i] = 0i;
  for (var v_137 : i32 = 0i; v_137 < 16i; v_137++) {
    let v_138 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), v_56[v_137])), v_19[v_137]);
    if (v_52[0i] == 0i) {
      if (0.000000e+00f < v_138) {
        v_51[0i] = v_137;
        v_53[0i] = v_49[0i];
        v_54[0i] = v_50[0i];
        if (v_48[0i] < (v_49[0i] + v_138)) {
          v_52[0i] = 1i;
        }
      }
      v_49[0i] = (v_49[0i] + v_138);
      v_50[0i] = (v_50[0i] + v_56[v_137]);
    }
  }
  v_49[0i] = v_53[0i];
  v_50[0i] = v_54[0i];
  let v_139 : i32 = (v_51[0i] * 16i);
  v_52[0i] = 0i;
  for (var v_140 : i32 = 0i; v_140 < 16i; v_140++) {
    let cse_v14 : i32 = (v_140 + v_139);
    let v_141 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), v_55[cse_v14])), v_18[cse_v14]);
    if (v_52[0i] == 0i) {
      if (0.000000e+00f < v_141) {
        v_51[0i] = (v_139 + v_140);
        v_53[0i] = v_49[0i];
        v_54[0i] = v_50[0i];
        if (v_48[0i] < (v_49[0i] + v_141)) {
          v_52[0i] = 1i;
        }
      }
      v_49[0i] = (v_49[0i] + v_141);
      v_50[0i] = (v_50[0i] + v_55[cse_v14]);
    }
  }
  v_49[0i] = v_53[0i];
  v_50[0i] = v_54[0i];
  let v_142 : i32 = v_51[0i];
  v_52[0i] = 0i;
  for (var v_143 : i32 = 0i; v_143 < 2i; v_143++) {
    if ((((cse_v13 + v_143)>>1u) + v_142) < 32768i) {
      let cse_v22 : i32 = (((v_142 * 8i) + (v_143 * 4i)) + v_133);
      let v_144 : vec4<f32> = vec4<f32>(probs_ptr[cse_v22 + 0], probs_ptr[cse_v22 + 1], probs_ptr[cse_v22 + 2], probs_ptr[cse_v22 + 3]);
      let v_145 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), select(0i, 1i, (bitcast<i32>((v_144)[0]) == v_125)))), select(0.000000e+00f, (v_144)[0], (v_125 < bitcast<i32>((v_144)[0]))));
      if (v_52[0i] == 0i) {
        if (0.000000e+00f < v_145) {
          v_51[0i] = cse_v22;
          v_53[0i] = v_49[0i];
          v_54[0i] = v_50[0i];
          if (v_48[0i] < (v_49[0i] + v_145)) {
            v_52[0i] = 1i;
          }
        }
        v_49[0i] = (v_49[0i] + v_145);
        v_50[0i] = (v_50[0i] + select(0i, 1i, (bitcast<i32>((v_144)[0]) == v_125)));
      }
      let v_146 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), select(0i, 1i, (bitcast<i32>((v_144)[1]) == v_125)))), select(0.000000e+00f, (v_144)[1], (v_125 < bitcast<i32>((v_144)[1]))));
      if (v_52[0i] == 0i) {
        if (0.000000e+00f < v_146) {
          v_51[0i] = (cse_v22 + 1i);
          v_53[0i] = v_49[0i];
          v_54[0i] = v_50[0i];
          if (v_48[0i] < (v_49[0i] + v_146)) {
            v_52[0i] = 1i;
          }
        }
        v_49[0i] = (v_49[0i] + v_146);
        v_50[0i] = (v_50[0i] + select(0i, 1i, (bitcast<i32>((v_144)[1]) == v_125)));
      }
      let v_147 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), select(0i, 1i, (bitcast<i32>((v_144)[2]) == v_125)))), select(0.000000e+00f, (v_144)[2], (v_125 < bitcast<i32>((v_144)[2]))));
      if (v_52[0i] == 0i) {
        if (0.000000e+00f < v_147) {
          v_51[0i] = (cse_v22 + 2i);
          v_53[0i] = v_49[0i];
          v_54[0i] = v_50[0i];
          if (v_48[0i] < (v_49[0i] + v_147)) {
            v_52[0i] = 1i;
          }
        }
        v_49[0i] = (v_49[0i] + v_147);
        v_50[0i] = (v_50[0i] + select(0i, 1i, (bitcast<i32>((v_144)[2]) == v_125)));
      }
      let v_148 : f32 = fma(bitcast<f32>(v_125), f32(min(max((v_47[0i] - v_50[0i]), 0i), select(0i, 1i, (bitcast<i32>((v_144)[3]) == v_125)))), select(0.000000e+00f, (v_144)[3], (v_125 < bitcast<i32>((v_144)[3]))));
      if (v_52[0i] == 0i) {
        if (0.000000e+00f < v_148) {
          v_51[0i] = (cse_v22 + 3i);
          v_53[0i] = v_49[0i];
          v_54[0i] = v_50[0i];
          if (v_48[0i] < (v_49[0i] + v_148)) {
            v_52[0i] = 1i;
          }
        }
        v_49[0i] = (v_49[0i] + v_148);
        v_50[0i] = (v_50[0i] + select(0i, 1i, (bitcast<i32>((v_144)[3]) == v_125)));
      }
    }
  }
  if (i32(threadIdx.x) == 0i) {
    token_ptr[0i] = v_51[0i];
  }
}


