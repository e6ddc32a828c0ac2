"""Configurations for tools/make_model.py, with the keys that published configs have. Sizes are of the weights."""


def layer_lists(layers, full):
    return {"full_attn_layers": full, "kda_layers": [i for i in range(1, layers + 1) if i not in full]}  # 1-based


def kimi_k3_500m():
    """About 500 MB: MXFP4 experts 180 MB, BF16 trunk; a decoded token reads a quarter of the experts."""
    layers = 12
    text = {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "hidden_size": 1024,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 3072,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "vocab_size": 32768,
        "bos_token_id": 32512,
        "eos_token_id": 32514,
        "pad_token_id": 32767,
        "max_position_embeddings": 1048576,
        "rms_norm_eps": 1e-5,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 4,
        "q_lora_rank": 384,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "mla_use_output_gate": True,
        "num_experts": 64,
        "num_experts_per_token": 16,
        "num_shared_experts": 2,
        "moe_intermediate_size": 320,
        "routed_expert_hidden_size": 512,
        "latent_moe_use_norm": True,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "linear_attn_config": {
            "num_heads": 8,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
            **layer_lists(layers, [4, 8, 11, 12]),  # the last two layers are both MLA, as published
        },
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized",
            "quantization_status": "compressed",
            "kv_cache_scheme": None,
            "config_groups": {
                "group_0": {
                    "format": "mxfp4-pack-quantized",
                    "targets": ["Linear"],
                    "input_activations": None,
                    "output_activations": None,
                    "weights": {
                        "num_bits": 4,
                        "type": "float",
                        "symmetric": True,
                        "strategy": "group",
                        "group_size": 32,
                        "dynamic": False,
                        "observer": "minmax",
                        "scale_dtype": "torch.uint8",
                    },
                }
            },
            "ignore": [
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
                "re:.*lm_head.*",
            ],
        },
    }
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "dtype": "bfloat16",
        "bos_token_id": 32512,
        "eos_token_id": 32514,
        "pad_token_id": 32767,
        "tie_word_embeddings": False,
        "text_config": text,
    }


def kimi_linear_240m():
    """About 240 MB, all BF16: 6 KDA and 2 MLA layers, 16 experts of which a row takes 4."""
    layers = 8
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "dtype": "bfloat16",
        "hidden_size": 768,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 128,
        "intermediate_size": 3072,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "vocab_size": 16384,
        "bos_token_id": 16128,
        "eos_token_id": 16130,
        "pad_token_id": 16383,
        "model_max_length": 1048576,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "q_lora_rank": None,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "mla_use_nope": True,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "num_shared_experts": 1,
        "moe_intermediate_size": 256,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 2.446,
        "use_grouped_topk": True,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 0,
        "tie_word_embeddings": False,
        "linear_attn_config": {
            "num_heads": 6,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            **layer_lists(layers, [4, 8]),
        },
    }


def llama_120m():
    """About 120 MB, all BF16."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1792,
        "vocab_size": 16384,
        "bos_token_id": 16380,
        "eos_token_id": [16381, 16382],
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
    }


def qwen3_next_260m():
    """About 260 MB, all BF16: 6 layers of Gated DeltaNet and 2 of attention, 32 experts of which a row takes 4."""
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "torch_dtype": "bfloat16",
        "hidden_size": 768,
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "intermediate_size": 2048,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "vocab_size": 16384,
        "bos_token_id": 16128,
        "eos_token_id": 16130,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


PRESETS = {
    "k3-500m": kimi_k3_500m,
    "kimi-linear-240m": kimi_linear_240m,
    "llama-120m": llama_120m,
    "qwen3-next-260m": qwen3_next_260m,
}
