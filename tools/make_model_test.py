#!/usr/bin/env python3
"""Tests of tools/make_model.py: layouts against checkpoints made elsewhere, files against the format's rules."""

import json
import math
import struct
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_model  # noqa: E402
from model_layouts import plan_tensors  # noqa: E402
from model_presets import PRESETS, layer_lists  # noqa: E402

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"

try:
    import numpy
except ImportError:
    numpy = None


def headers(folder):
    """Name -> (dtype, shape) over all files of a folder."""
    found = {}
    for path in folder.glob("model*.safetensors"):
        with open(path, "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        header.pop("__metadata__", None)
        found.update({name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()})
    return found


def planned(config):
    return {t.name: (t.dtype, tuple(t.shape)) for t in plan_tensors(config)}


def read_config(path):
    return json.loads((FIXTURES / path).read_text())


def published_kimi_k3():
    """The released model's dimensions."""
    config = PRESETS["k3-500m"]()
    text = config["text_config"]
    text.update(
        hidden_size=7168, num_hidden_layers=93, num_attention_heads=96, num_key_value_heads=96, intermediate_size=33792,
        vocab_size=163840, attn_res_block_size=12, q_lora_rank=1536, kv_lora_rank=512, num_experts=896,
        moe_intermediate_size=3072, routed_expert_hidden_size=3584,
    )  # fmt: skip
    text["linear_attn_config"].update(num_heads=96, **layer_lists(93, [*range(4, 93, 4), 93]))
    return config


def vision_bytes():
    """BF16 vision tower and projector of the released model, which are not written."""
    block = 2 * 1024 + 4608 * 1024 + 1024 * 1536 + 2 * 4096 * 1024
    tower = 1024 * 3 * 14 * 14 + 64 * 64 * 1024 + 27 * block + 1024
    projector = 4096 * 4096 + 7168 * 4096 + 7168
    return 2 * (tower + projector)


class Layouts(unittest.TestCase):
    def test_kimi_k3_equals_the_fixture_apart_from_vision(self):
        text_only = {n: w for n, w in headers(FIXTURES / "kimi_k3/k3-tiny").items() if n.startswith("language_model.")}
        self.assertEqual(planned(read_config("kimi_k3/k3-tiny/config.json")), text_only)

    def test_kimi_k3_adds_up_to_the_published_size(self):
        tensors = plan_tensors(published_kimi_k3())
        total = sum(make_model.tensor_bytes(t) for t in tensors)
        self.assertEqual(total + vision_bytes(), 1_560_860_324_864)
        files = make_model.cut_into_files(tensors, 1e15)
        self.assertEqual(len(files), 94)  # a file for each layer and one for the rest; 95 and 96 are vision
        self.assertEqual(make_model.file_names(94, "kimi_k3")[0], "model-00001-of-000094.safetensors")

    def test_other_families_equal_the_fixtures_in_both_forms_of_config(self):
        for family in ("kimi_linear", "llama", "qwen3_next"):
            for form in ("config.json", "config.hub.json"):
                with self.subTest(family=family, form=form):
                    expected = headers(FIXTURES / "hf" / family)
                    config = read_config(f"hf/{family}/{form}")
                    self.assertEqual(planned(config), expected)

    def test_without_quantization_config_experts_are_bf16(self):
        config = read_config("kimi_k3/k3-tiny/config.json")
        del config["text_config"]["quantization_config"]
        experts = {n: w for n, w in planned(config).items() if ".experts." in n}
        self.assertTrue(experts)
        self.assertTrue(all(n.endswith(".weight") and w[0] == "BF16" for n, w in experts.items()))

    def test_presets_have_the_sizes_in_their_names(self):
        sizes = (
            ("k3-500m", 450, 550),
            ("kimi-linear-240m", 200, 300),
            ("llama-120m", 100, 140),
            ("qwen3-next-260m", 230, 280),
        )
        for preset, low, high in sizes:
            size = sum(make_model.tensor_bytes(t) for t in plan_tensors(PRESETS[preset]())) / 1e6
            self.assertTrue(low <= size <= high, f"{preset}: {size} MB")

    def test_an_unknown_family_is_refused_by_name(self):
        with self.assertRaisesRegex(ValueError, "mystery"):
            plan_tensors({"model_type": "mystery"})


class Files(unittest.TestCase):
    def test_files_are_cut_at_the_size_and_hold_every_tensor_once(self):
        tensors = plan_tensors(read_config("hf/llama/config.json"))
        files = make_model.cut_into_files(tensors, 200_000)
        self.assertGreater(len(files), 3)
        for part in files:
            self.assertTrue(len(part) == 1 or sum(map(make_model.tensor_bytes, part)) <= 200_000)
        self.assertEqual([t for part in files for t in part], tensors)

    def test_a_damaged_file_fails_the_self_check(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            header, ordered = make_model.header_of(plan_tensors(read_config("hf/llama/config.json"))[2:4])
            data = bytes(sum(map(make_model.tensor_bytes, ordered)))
            path.write_bytes(header + data)
            self.assertEqual(len(make_model.read_header(path)), 2)
            for damaged in (header + data[:-1], header + data + b"x", header.replace(b"[128]", b"[129]") + data):
                path.write_bytes(damaged)
                with self.assertRaises(make_model.Failure):
                    make_model.read_header(path)


@unittest.skipIf(numpy is None, "numpy is not installed: writing models is not tested")
class Written(unittest.TestCase):
    def write(self, config, folder, shard_bytes=1e9, seed=3):
        tensors = plan_tensors(config)
        files = make_model.cut_into_files(tensors, shard_bytes)
        names = make_model.file_names(len(files), config["model_type"])
        make_model.write_model(config, tensors, files, names, Path(folder), seed)

    def values(self, folder):
        found = {}
        for path in Path(folder).glob("*.safetensors"):
            data = path.read_bytes()
            (length,) = struct.unpack("<Q", data[:8])
            for name, entry in json.loads(data[8 : 8 + length]).items():
                if name != "__metadata__":
                    begin, end = (8 + length + offset for offset in entry["data_offsets"])
                    found[name] = data[begin:end]
        return found

    def test_values_depend_on_the_seed_and_not_on_the_cut_into_files(self):
        config = read_config("hf/llama/config.json")
        with tempfile.TemporaryDirectory() as root:
            self.write(config, root + "/one")
            self.write(config, root + "/many", shard_bytes=100_000)
            self.write(config, root + "/other", seed=4)
            self.assertEqual(self.values(root + "/one"), self.values(root + "/many"))
            self.assertFalse((Path(root) / "one/model.safetensors.index.json").exists())
            self.assertTrue((Path(root) / "many/model.safetensors.index.json").exists())
            one, other = self.values(root + "/one"), self.values(root + "/other")
            self.assertTrue(all(one[name] != other[name] for name in one))

    def test_weights_keep_the_size_of_activations(self):
        config = read_config("kimi_k3/k3-tiny/config.json")
        with tempfile.TemporaryDirectory() as root:
            self.write(config, root + "/m")
            values = self.values(root + "/m")
        e2m1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], numpy.float64)
        for tensor in plan_tensors(config):
            if tensor.dtype == "BF16" and tensor.fill.mean == 0 and math.prod(tensor.shape) > 4000:
                bits = numpy.frombuffer(values[tensor.name], numpy.uint16).astype(numpy.uint32) << 16
                self.assertAlmostEqual(bits.view(numpy.float32).std() / tensor.fill.scale, 1, delta=0.1)
            if tensor.name.endswith("experts.0.w1.weight_packed"):
                packed = numpy.frombuffer(values[tensor.name], numpy.uint8)
                magnitudes = numpy.stack([e2m1[packed & 7], e2m1[(packed >> 4) & 7]], 1).reshape(-1, 32)
                codes = numpy.frombuffer(values[tensor.name.replace("packed", "scale")], numpy.uint8)
                self.assertEqual(len(set(codes.tolist())), 4)
                rms = numpy.sqrt(((magnitudes * 2.0 ** (codes.astype(float) - 127)[:, None]) ** 2).mean())
                self.assertTrue(0.6 < rms * math.sqrt(2 * tensor.shape[1]) < 2, rms)
            if tensor.name.endswith("A_log"):
                self.assertEqual(values[tensor.name][4 * 4 :], bytes(4 * (128 - 4)))

    def test_a_folder_that_is_not_empty_is_left_alone(self):
        with tempfile.TemporaryDirectory() as root:
            (Path(root) / "note").write_text("mine")
            with self.assertRaisesRegex(make_model.Failure, "not empty"):
                self.write(read_config("hf/llama/config.json"), root)


if __name__ == "__main__":
    unittest.main()
