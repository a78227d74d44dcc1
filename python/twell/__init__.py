"""Exact sparse feed-forward layers for PyTorch.

``import twell`` loads the operators ``torch.ops.twell.*`` (``twell.ops`` documents them). It has

* :class:`GatedFfn` and :class:`Ffn`, feed-forward layers that are sparse in inference and training;
* :func:`report`, which counts how many neurons of a model fire (``twell stats`` does so in the shell);
* :func:`sparsify`, which replaces the feed-forward layers of a model by sparse ones;
* :func:`float_logits`, with which a model in bfloat16 yields logits that are not rounded;
* :func:`round_scales`, with which int4 models of other programs keep their codes;
* :func:`set_l1`, which trains a model so that fewer neurons fire;
* :func:`gated_ffn`, the differentiable function of a layer, with the L1 term of its activations.

The operators' library is ``libtwell_torch.so`` in this folder, unless the environment variable
``TWELL_TORCH_LIBRARY`` names another file. If PyTorch sees an NVIDIA GPU, ``libtwell_torch_cuda.so``
in the same folder is loaded too, and the operators take CUDA tensors;
``TWELL_TORCH_CUDA_LIBRARY`` names another file.
"""

from twell import _library

_library.load()

from twell import (  # noqa: E402  (after the library)
    _autocast,
    _fake,
    _rules,
    autograd,
    dense,
    hf,
    ops,
    prepared,
)
from twell._codes import round_scales  # noqa: E402
from twell.autograd import gated_ffn  # noqa: E402
from twell.dense import ACTIVATIONS, FatRelu  # noqa: E402
from twell.hf import float_logits, from_mlp, report, sparsify  # noqa: E402
from twell.modules import Ffn, GatedFfn  # noqa: E402
from twell.sparsity import (  # noqa: E402
    collect_metrics,
    l1_term,
    metrics,
    set_l1,
    sparse_layers,
)

_fake.register()
_rules.register()
_autocast.register()

__version__ = "0.1.0"
__all__ = [
    "ACTIVATIONS",
    "FatRelu",
    "Ffn",
    "GatedFfn",
    "autograd",
    "collect_metrics",
    "dense",
    "float_logits",
    "from_mlp",
    "gated_ffn",
    "hf",
    "l1_term",
    "metrics",
    "ops",
    "prepared",
    "report",
    "round_scales",
    "set_l1",
    "sparse_layers",
    "sparsify",
]
