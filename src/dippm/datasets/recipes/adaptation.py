"""Fifty configurations of timm models to adapt the shipped predictor by: those that stand for all others.

The middles of 42 clusters of what the time of a call goes to, over 240 of timm's models at batches of 8 to 256 that
take at most 6,000 MiB; and eight of these models at a batch of one, which tell the host's rate. Chosen by
``python scripts/choose_adaptation_recipes.py``.
"""

from __future__ import annotations

from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.timm_choice import order_timm_models

__all__ = ["recipes"]

_COLLECTION = "adapt-50"
# Model, pixels, batch, family.
_CHOSEN = (
    ("beitv2_base_patch16_224", 224, 8, "beit"),
    ("caformer_m36", 384, 8, "caformer"),
    ("cait_xs24_384", 384, 32, "cait"),
    ("coatnet_2_rw_224", 224, 32, "coatnet"),
    ("coatnet_nano_cc_224", 224, 1, "coatnet"),
    ("coatnet_nano_cc_224", 224, 128, "coatnet"),
    ("deit_base_distilled_patch16_224", 224, 32, "deit"),
    ("dm_nfnet_f1", 320, 32, "nfnet"),
    ("ecaresnet101d_pruned", 224, 128, "ecaresnet"),
    ("edgenext_xx_small", 288, 1, "edgenext"),
    ("edgenext_xx_small", 288, 64, "edgenext"),
    ("efficientformerv2_s1", 224, 64, "efficientformer"),
    ("gcresnext50ts", 288, 8, "gcresnext"),
    ("hiera_small_224", 224, 32, "hiera"),
    ("lamhalobotnet50ts_256", 256, 64, "lamhalobotnet"),
    ("levit_384", 224, 1, "levit"),
    ("levit_384", 224, 64, "levit"),
    ("maxvit_rmlp_small_rw_224", 224, 32, "maxvit"),
    ("mobilenet_edgetpu_v2_xs", 224, 128, "mobilenet"),
    ("poolformer_m36", 224, 1, "poolformer"),
    ("poolformer_m36", 224, 64, "poolformer"),
    ("poolformerv2_s36", 224, 64, "poolformer"),
    ("pvt_v2_b2_li", 224, 1, "pvt"),
    ("pvt_v2_b2_li", 224, 32, "pvt"),
    ("regnety_160", 384, 32, "regnety"),
    ("regnetz_b16", 288, 64, "regnetz"),
    ("resnest50d", 224, 64, "resnest"),
    ("resnet34", 288, 128, "resnet"),
    ("resnet61q", 256, 64, "resnet"),
    ("resnetblur50", 224, 8, "resnetblur"),
    ("resnetv2_101x1_bit", 224, 64, "resnet"),
    ("resnext101_32x8d", 224, 64, "resnext"),
    ("resnext50d_32x4d", 288, 8, "resnext"),
    ("resnext50d_32x4d", 288, 64, "resnext"),
    ("rexnetr_130", 224, 1, "rexnetr"),
    ("rexnetr_130", 224, 128, "rexnetr"),
    ("sam2_hiera_base_plus", 896, 8, "sam"),
    ("semnasnet_075", 224, 32, "semnasnet"),
    ("seresnetaa50d", 224, 1, "seresnetaa"),
    ("seresnetaa50d", 224, 64, "seresnetaa"),
    ("swinv2_base_window12_192", 192, 8, "swin"),
    ("swinv2_base_window12_192", 192, 128, "swin"),
    ("tf_efficientnet_b0", 224, 8, "efficientnet"),
    ("vit_base_patch16_plus_240", 240, 1, "vit"),
    ("vit_base_patch16_plus_240", 240, 128, "vit"),
    ("vit_base_patch8_224", 224, 32, "vit"),
    ("vit_medium_patch16_rope_reg1_gap_256", 256, 128, "vit"),
    ("vitamin_small_224", 224, 32, "vitamin"),
    ("xcit_medium_24_p16_384", 384, 64, "xcit"),
    ("xcit_tiny_12_p8_384", 384, 32, "xcit"),
)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """The recipes in stratified order.

    Args:
        seed: Another seed gives another order of the same recipes.
    """
    return order_timm_models(_CHOSEN, collection=_COLLECTION, seed=seed)
