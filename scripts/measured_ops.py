"""The ops of training steps that measure_gpu.py measures: their operands, calls and sizes."""
import functools

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

BF16, F32 = torch.bfloat16, torch.float32
GROUPED = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
# Set by measure_gpu.py: where operands are, whether for a dry run, and whether a GEMM of this version
# adds products of bf16 to a sum of f32.
device, dry, adds = "cuda", False, True

if triton:
    @triton.jit
    def copy_by_few(source, target, size, BLOCK: tl.constexpr):
        for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(target + at, tl.load(source + at))


def randn(*shape, dtype=BF16, grad=False):
    return torch.randn(shape, device=device, dtype=dtype, requires_grad=grad)


class Work:
    """An op: make() returns one set of operands, call(*operands) runs it. bytes: of memory that a
    call moves, if not its operands and results once. sets: of operands, if it is not to be found."""

    def __init__(self, make, call, flops=0, bytes=0, sets=0, dtype="bf16"):
        self.make, self.call, self.flops, self.bytes = make, call, flops, bytes
        self.sets, self.dtype = sets, dtype


# Products. A builder takes the sizes of a row, and its way if the op has several.

def add_product(total, a, b):
    """total += a @ b, by one GEMM if this version has it."""
    if total.dtype == BF16:
        return total.addmm_(a, b)
    return torch.addmm(total, a, b, out_dtype=F32, out=total) if adds else total.add_(a @ b)


def find_adds():
    """Sets `adds`."""
    global adds
    try:
        add_product(randn(64, 64, dtype=F32), randn(64, 64), randn(64, 64))
    except (TypeError, RuntimeError):  # what has no such GEMM, or no argument for it
        adds = False


def gemm(m, n, k, of="", grad_bytes=0):
    flops = 2 * m * n * k
    if of == "dw":
        total = F32 if grad_bytes == 4 else BF16
        return Work(lambda: (randn(m, n, dtype=total), randn(k, m), randn(k, n)),
                    lambda y, dy, x: add_product(y, dy.t(), x), flops)
    if of == "dx":
        return Work(lambda: (randn(m, n), randn(m, k), randn(k, n)),
                    lambda y, dy, w: torch.mm(dy, w, out=y), flops)
    return Work(lambda: (randn(m, n), randn(m, k), randn(n, k)),
                lambda y, x, w: torch.mm(x, w.t(), out=y), flops)


def grouped(experts, rows, n, k, of="", way="grouped", grad_bytes=0, uneven=False):
    counts = [rows] * experts
    if uneven:  # of a log-normal distribution, the fullest about 4 times the mean
        draw = torch.exp(torch.randn(experts, generator=torch.Generator().manual_seed(1)))
        counts = [int(x) for x in (draw / draw.sum() * rows * experts)]
        counts[0] += rows * experts - sum(counts)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32).to(device)
    every, parts = rows * experts, functools.partial(torch.split, split_size_or_sections=counts)

    def make():
        if of == "dw":
            return (randn(experts, n, k, dtype=F32 if grad_bytes == 4 else BF16), randn(every, n),
                    randn(every, k))
        shape = (experts, k, n) if of == "dx" else (experts, n, k)
        return randn(every if way == "loop" else 0, n), randn(every, k), randn(*shape)

    def call(y, a, b):
        if way == "loop" and of == "dw":
            for total, dy, x in zip(y, parts(a), parts(b)):
                add_product(total, dy.t(), x)
        elif way == "loop":
            for out, x, w in zip(parts(y), parts(a), b):
                torch.mm(x, w if of == "dx" else w.t(), out=out)
        elif of == "dw":
            return y.add_(GROUPED(a.t(), b, offs=ends))
        else:
            return GROUPED(a, b if of == "dx" else b.transpose(1, 2), offs=ends)
    return Work(make, call, 2 * every * n * k)


def attention(batch, seq, heads, kv_heads=0, head_dim=192, value_dim=0, way="cudnn", backward=False):
    """Without kv_heads: latent attention with DeepSeek-V3's head sizes."""
    kv, value_dim = kv_heads or heads, head_dim if kv_heads else 128

    def forward(q, k, v):
        with sdpa_kernel([BACKENDS[way], SDPBackend.MATH] if dry else BACKENDS[way]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != heads)

    def make():
        qkv = [randn(batch, seq, *size, grad=backward).transpose(1, 2)
               for size in ((heads, head_dim), (kv, head_dim), (kv, value_dim))]
        return (forward(*qkv), *qkv, randn(batch, seq, heads, value_dim).transpose(1, 2)) \
            if backward else qkv

    flops = batch * heads * seq * seq * (head_dim + value_dim)
    if backward:
        return Work(make, lambda y, q, k, v, dy: gradients(y, (q, k, v), dy), 2.5 * flops)
    return Work(make, forward, flops)


def gradients(y, of, dy):
    return torch.autograd.grad(y, of, dy, retain_graph=True)


# Ops that are bound by memory.

def permute(tokens, topk, hidden):
    return Work(lambda: (randn(tokens, hidden), shuffled(tokens, topk) // topk),
                lambda x, index: x.index_select(0, index), bytes=4 * tokens * topk * hidden)


def unpermute(tokens, topk, hidden, way="gather"):
    """The rows that experts return, weighted and added by token."""
    def make():
        order = shuffled(tokens, topk)
        index = order // topk if way == "index_add" else order
        return randn(tokens * topk, hidden), index, randn(tokens, topk)

    def call(rows, index, weights):
        if way == "index_add":
            weighted = rows * weights.view(-1, 1)
            return rows.new_zeros(tokens, hidden).index_add_(0, index, weighted)
        return torch.bmm(weights.unsqueeze(1), rows.index_select(0, index).view(tokens, topk, hidden))
    return Work(make, call, bytes=2 * tokens * (topk + 1) * hidden)


def shuffled(tokens, topk):
    return torch.randperm(tokens * topk, device=device)


def elementwise(function, shapes, backward=False, compiled=False, dtype="bf16"):
    """function of operands of `shapes`; backward: its gradients of all operands."""
    function = torch.compile(function, dynamic=False) if compiled and not dry else function

    def make():
        operands = [randn(*shape, dtype=F32 if dtype == "f32" else BF16, grad=backward)
                    for shape in shapes]
        if not backward:
            return operands
        y = function(*operands)
        return y, operands, torch.randn_like(y)
    return Work(make, gradients if backward else function, dtype=dtype)


def norm(rows, hidden, way="layer_norm", backward=False):
    if way == "layer_norm":
        return elementwise(lambda x, w, b: F.layer_norm(x, (hidden,), w, b),
                           [(rows, hidden), (hidden,), (hidden,)], backward)
    return elementwise(lambda x, w: F.rms_norm(x, (hidden,), w), [(rows, hidden), (hidden,)],
                       backward, way == "rms_norm compiled")


FUNCTIONS = {"gelu": (lambda x: F.gelu(x, approximate="tanh"), 1, "bf16"),
             "swiglu": (lambda gate, up: F.silu(gate) * up, 2, "bf16"),
             "add": (torch.add, 2, "bf16"), "to_f32": (lambda x: x.float(), 1, "bf16"),
             "to_bf16": (lambda x: x.bfloat16(), 1, "f32")}


def mapped(rows, hidden, way="gelu", backward=False, compiled=False):
    function, count, dtype = FUNCTIONS[way]
    return elementwise(function, [(rows, hidden)] * count, backward, compiled, dtype)


def adamw(params):
    def make():
        weights = [randn(params // 16, dtype=F32, grad=True) for _ in range(16)]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        return torch.optim.AdamW(weights, lr=1e-4, fused=True, capturable=not dry),
    return Work(make, lambda optimizer: optimizer.step(), bytes=28 * params, sets=1, dtype="f32")


def cross_entropy(rows, vocab):
    """Forward and backward of logits in bf16, with the softmax in f32."""
    def call(logits, target):
        return torch.autograd.grad(F.cross_entropy(logits.float(), target), logits)
    return Work(lambda: (randn(rows, vocab, grad=True),
                         torch.randint(vocab, (rows,), device=device)), call)


def copy(bytes, way="copy_"):
    """By PyTorch, or by a kernel of few programs, as NCCL's occupy few of the GPU's SMs."""
    def call(source, target):
        if way == "copy_" or dry:
            return target.copy_(source)
        copy_by_few[int(way.split()[0]),](source, target, source.numel(), BLOCK=8192, num_warps=16)
    return Work(lambda: tuple(randn(bytes // 4, dtype=F32).view(torch.int32) for _ in range(2)), call,
                bytes=2 * bytes)


# Tokens, and n and k of the weights, of real models and between them.
WEIGHTS = (
    (8192, 8192, 8192), (4096, 4096, 4096), (16384, 4096, 4096), (8192, 14336, 4096),
    (4096, 4096, 14336), (4096, 2304, 768), (16384, 3072, 768), (16384, 768, 768),
    (8192, 768, 3072), (8192, 50304, 768), (8192, 4096, 1024), (4096, 1024, 4096),
    (8192, 2048, 2048), (16384, 6144, 2048), (4096, 2048, 6144), (4096, 151936, 2048),
    (8192, 5120, 2880), (4096, 2880, 4096), (16384, 7168, 2048), (4096, 18432, 7168),
    (8192, 1536, 7168), (4096, 7168, 16384), (8192, 24576, 1536), (8192, 128, 2048),
    (4096, 28672, 8192), (1024, 4096, 4096), (256, 4096, 4096), (1024, 2048, 1024))
# Experts of a rank, rows of one, and n and k of its weights.
EXPERTS = ((8, 2048, 1408, 2048), (8, 2048, 14336, 4096), (8, 512, 3072, 768), (16, 512, 1536, 2048),
           (16, 2048, 2048, 7168), (32, 128, 1408, 2048), (32, 512, 2048, 7168),
           (64, 128, 768, 2048), (64, 512, 1536, 4096))
ATTENTION = ((2, 4096, 32, 32, 128), (2, 4096, 32, 8, 128), (1, 8192, 32, 4, 128),
             (8, 1024, 16, 16, 64), (24, 512, 12, 12, 64), (1, 4096, 64, 64, 128))


def rows_of_steps():
    """The rows (op, builder, sizes, other arguments, what runs beside it), important ones first."""
    def row(op, build, sizes, beside=None, **arguments):
        return op, build, sizes, arguments, beside

    def named(names, values):
        return dict(zip(names.split(), values))
    yield row("copy", copy, dict(bytes=4 << 30))
    for i, (tokens, n, k) in enumerate(WEIGHTS):
        yield row("gemm", gemm, named("m n k", (tokens, n, k)))
        yield row("gemm_dx", gemm, named("m n k", (tokens, k, n)), of="dx")
        for each in (4, 2) if i % 4 == 0 else (4,):
            yield row("gemm_dw", gemm, named("m n k grad_bytes", (n, k, tokens, each)), of="dw")
    for i, (experts, rows, n, k) in enumerate(EXPERTS):
        forward, dx = (named("experts rows n k", (experts, rows, *nk)) for nk in ((n, k), (k, n)))
        for way in "grouped", "loop":
            if way == "grouped" or i % 3 == 0:
                yield row("grouped_gemm", grouped, forward, way=way)
                yield row("grouped_gemm_dx", grouped, dx, of="dx", way=way)
            for each in (4, 2) if way == "grouped" and i % 2 == 0 else (4,):
                yield row("grouped_gemm_dw", grouped, {**forward, "grad_bytes": each}, of="dw",
                          way=way)
    for sizes in ATTENTION:
        for way in BACKENDS:
            at = named("batch seq heads kv_heads head_dim", sizes)
            yield row("attention", attention, at, way=way)
            yield row("attention_dx", attention, at, way=way, backward=True)
    for sizes in (1, 4096, 128), (2, 4096, 16):
        for op, backward in ("latent_attention", False), ("latent_attention_dx", True):
            yield row(op, attention, named("batch seq heads", sizes), way="cudnn", backward=backward)
    for i in 0, 3, 7:
        uneven = named("experts rows n k", EXPERTS[i])
        yield row("grouped_gemm_uneven", grouped, uneven, uneven=True)
    for hidden in 2048, 4096, 7168:
        for topk in 2, 8:
            at = dict(tokens=16384, topk=topk, hidden=hidden)
            yield row("permute", permute, at)
            for way in ("gather", "index_add") if topk == 8 else ("gather",):
                yield row("unpermute", unpermute, at, way=way)
    # Products beside a copy: the same op alone, if no row above is that, then both.
    ways = ["copy_", "8 programs", "16 programs", "32 programs"]
    chunk, wide = dict(bytes=1 << 28), dict(rows=65536, hidden=8192)
    for way in ways:
        yield row("copy", copy, chunk, way=way)
    yield row("add", mapped, wide, way="add")
    for way in ways:
        for sizes in (8192, 8192, 8192), (16384, 4096, 4096):
            yield row("gemm", gemm, named("m n k", sizes), (copy, chunk, dict(way=way)))
        yield row("add", mapped, wide, (copy, chunk, dict(way=way)), way="add")
    for hidden, way in (2048, "rms_norm"), (7168, "rms_norm"), (1024, "layer_norm"), \
            (4096, "layer_norm"):
        for backward in False, True:
            yield row("norm", norm, dict(rows=16384, hidden=hidden), way=way, backward=backward)
    yield row("adamw", adamw, dict(params=100_000_000))
    for sizes in (8192, 50304), (4096, 151936):
        yield row("cross_entropy", cross_entropy, named("rows vocab", sizes))
    for way, backward in ("gelu", False), ("gelu", True), ("to_f32", False), ("to_bf16", False):
        yield row(way, mapped, dict(rows=16384, hidden=4096), way=way, backward=backward)
    for backward in False, True:  # last, since compiling takes a while
        yield row("swiglu", mapped, dict(rows=16384, hidden=4096), way="swiglu", backward=backward,
                  compiled=True)
        yield row("norm", norm, dict(rows=16384, hidden=4096), way="rms_norm compiled",
                  backward=backward)
