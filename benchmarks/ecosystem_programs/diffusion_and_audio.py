"""Generators and codecs: diffusers, denoising-diffusion, vector quantisation, Encodec, Mimi."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


def _unet() -> Any:
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1,
        block_out_channels=(16, 32), norm_num_groups=8, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


@FAMILY.training("diffusers")
def noise_prediction_loss() -> Any:
    from diffusers import DDPMScheduler

    unet, scheduler = _unet().train(), DDPMScheduler(num_train_timesteps=100)

    def loss(images: torch.Tensor, noise: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        noisy = scheduler.add_noise(images, noise, steps)
        return torch.nn.functional.mse_loss(unet(noisy, steps, return_dict=False)[0], noise)

    def inputs() -> Any:
        images = torch.randn(2, 2, 3, 16, 16)
        return images[0], images[1], torch.randint(0, 100, (2,))

    return loss, inputs, (unet,)


@FAMILY.inference("diffusers")
def ddim_samples_in_three_steps() -> Any:
    from diffusers import DDIMScheduler

    unet, scheduler = _unet().eval(), DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(3)

    def sample(image: torch.Tensor) -> torch.Tensor:
        for t in scheduler.timesteps:
            image = scheduler.step(unet(image, t).sample, t, image).prev_sample
        return image

    return sample, lambda: (torch.randn(1, 3, 16, 16),)


@FAMILY.inference("diffusers")
def euler_scheduler_over_a_linear_denoiser() -> Any:
    from diffusers import EulerDiscreteScheduler

    net, scheduler = torch.nn.Linear(8, 8), EulerDiscreteScheduler(num_train_timesteps=100)

    def sample(x: torch.Tensor) -> torch.Tensor:
        scheduler.set_timesteps(4)
        x = x * scheduler.init_noise_sigma
        for t in scheduler.timesteps:
            x = scheduler.step(net(scheduler.scale_model_input(x, t)), t, x).prev_sample
        return x

    return sample, lambda: (torch.randn(4, 8),)


@FAMILY.inference("diffusers")
def conditioned_unet() -> Any:
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(16, 32), norm_num_groups=8, cross_attention_dim=16,
        attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip

    def guided(latents: torch.Tensor, t: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        both = torch.cat([latents, latents])
        without, with_text = unet(both, t, encoder_hidden_states=text).sample.chunk(2)
        return without + 7.5 * (with_text - without)

    return guided, lambda: (
        torch.randn(1, 4, 16, 16),
        torch.randint(0, 100, (1,)),
        torch.randn(2, 6, 16),
    )


@FAMILY.training("diffusers")
def variational_autoencoder() -> Any:
    from diffusers import AutoencoderKL

    net = AutoencoderKL(
        in_channels=3, out_channels=3, block_out_channels=(16, 32), norm_num_groups=8,
        latent_channels=4, down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    ).train()  # fmt: skip

    def loss(images: torch.Tensor) -> Any:
        posterior = net.encode(images).latent_dist
        decoded = net.decode(posterior.sample()).sample
        return torch.nn.functional.mse_loss(decoded, images), posterior.kl().mean()

    return loss, lambda: (torch.randn(2, 3, 16, 16),), (net,)


@FAMILY.inference("diffusers")
def diffusion_transformer() -> Any:
    from diffusers import DiTTransformer2DModel

    net = DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2,
        sample_size=8, patch_size=2, num_embeds_ada_norm=10, norm_num_groups=8,
    ).eval()  # fmt: skip

    def run(latents: torch.Tensor, t: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return net(latents, timestep=t, class_labels=labels).sample

    return run, lambda: (
        torch.randn(2, 4, 8, 8),
        torch.randint(0, 100, (2,)),
        torch.randint(0, 10, (2,)),
    )


@FAMILY.training("denoising-diffusion-pytorch")
def gaussian_diffusion_loss() -> Any:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    unet = Unet(dim=8, dim_mults=(1, 2), flash_attn=False, attn_heads=2, attn_dim_head=8)
    diffusion = GaussianDiffusion(unet, image_size=16, timesteps=20).train()
    return diffusion, lambda: (torch.rand(2, 3, 16, 16),)


@FAMILY.inference("denoising-diffusion-pytorch")
def one_dimensional_unet() -> Any:
    from denoising_diffusion_pytorch import Unet1D

    unet = Unet1D(dim=8, dim_mults=(1, 2), channels=4, attn_heads=2, attn_dim_head=8)
    return unet.eval(), lambda: (torch.randn(2, 4, 32), torch.randint(0, 20, (2,)))


@FAMILY.training("denoising-diffusion-pytorch")
def elucidated_diffusion_loss() -> Any:
    from denoising_diffusion_pytorch import ElucidatedDiffusion, Unet

    unet = Unet(
        dim=8, dim_mults=(1, 2), attn_heads=2, attn_dim_head=8, learned_sinusoidal_cond=True
    )
    return ElucidatedDiffusion(unet, image_size=16, num_sample_steps=4).train(), lambda: (
        torch.rand(2, 3, 16, 16),
    )


@FAMILY.inference("vector-quantize-pytorch")
def residual_codebooks() -> Any:
    from vector_quantize_pytorch import ResidualVQ

    quantizer = ResidualVQ(dim=16, num_quantizers=3, codebook_size=32).eval()
    return quantizer, lambda: (torch.randn(2, 24, 16),)


@FAMILY.training("vector-quantize-pytorch")
def codebook_learns_by_moving_averages() -> Any:
    from vector_quantize_pytorch import VectorQuantize

    quantizer = VectorQuantize(dim=16, codebook_size=32, decay=0.8, commitment_weight=1.0).train()
    return quantizer, lambda: (torch.randn(2, 24, 16, requires_grad=True),)


@FAMILY.training("vector-quantize-pytorch")
def finite_scalar_quantisation() -> Any:
    from vector_quantize_pytorch import FSQ

    net, quantizer = torch.nn.Linear(8, 4), FSQ([8, 5, 5, 5])

    def run(x: torch.Tensor) -> Any:
        return quantizer(net(x))

    return run, lambda: (torch.randn(2, 24, 8),), (net, quantizer)


@FAMILY.inference("vector-quantize-pytorch")
def lookup_free_quantisation() -> Any:
    from vector_quantize_pytorch import LFQ

    quantizer = LFQ(codebook_size=256, dim=8).eval()
    return lambda x: quantizer(x)[:2], lambda: (torch.randn(2, 24, 8),)


@FAMILY.inference("transformers codecs")
def encodec_there_and_back() -> Any:
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(
        num_filters=4, hidden_size=16, codebook_size=32, codebook_dim=16, num_lstm_layers=1,
        upsampling_ratios=[4, 2], target_bandwidths=[24.0], norm_type="weight_norm",
    )  # fmt: skip
    model = EncodecModel(config).eval()

    def run(audio: torch.Tensor) -> Any:
        encoded = model.encode(audio, bandwidth=24.0)
        return encoded.audio_codes, model.decode(encoded.audio_codes, encoded.audio_scales)[0]

    return run, lambda: (torch.randn(1, 1, 512),)


@FAMILY.inference("transformers codecs")
def mimi_encodes() -> Any:
    from transformers import MimiConfig, MimiModel

    config = MimiConfig(
        hidden_size=32, num_filters=4, num_residual_layers=1, upsampling_ratios=[4, 2],
        codebook_size=32, codebook_dim=16, num_quantizers=4, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, intermediate_size=32,
        vector_quantization_hidden_dimension=16, upsample_groups=32,
    )  # fmt: skip
    model = MimiModel(config).eval()
    return lambda audio: model.encode(audio, num_quantizers=4).audio_codes, lambda: (
        torch.randn(1, 1, 512),
    )


@FAMILY.inference("transformers codecs")
def dac_reconstructs() -> Any:
    from transformers import DacConfig, DacModel

    config = DacConfig(
        encoder_hidden_size=8, downsampling_ratios=[2, 4], decoder_hidden_size=32,
        upsampling_ratios=[4, 2], n_codebooks=3, codebook_size=32, codebook_dim=4,
    )  # fmt: skip
    model = DacModel(config).eval()
    return lambda audio: model(audio).audio_values, lambda: (torch.randn(1, 1, 256),)


@FAMILY.inference("transformers codecs")
def vits_style_spectrogram() -> Any:
    def spectrogram(audio: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(64)
        spectrum = torch.stft(audio, 64, 16, window=window, return_complex=True)
        restored = torch.istft(spectrum, 64, 16, window=window, length=audio.shape[-1])
        return torch.log1p(spectrum.abs()), restored

    return spectrogram, lambda: (torch.randn(2, 1024),)
