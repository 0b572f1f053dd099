"""What a statement may be: templates, grouped by what they need.

Place: read by ``generate``. ``x`` stands for the value that is chosen, ``y`` and ``z`` for others of its kind, ``c``
for a boolean one, ``i`` for positions (int64), ``n`` for a Python number that was read from a tensor, ``d`` and ``e``
for dimensions of ``x``, ``k`` for a small whole number. ``W(...)`` is a parameter of that shape and type of ``x``;
``V(...)`` a buffer; ``L``, ``C`` are sizes of ``x`` (last, second).
Invariants: what jumps (comparisons, rounding, positions) is drawn on exact values only, see ``generate``.
"""

from __future__ import annotations


def _templates(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for line in text.strip().splitlines() for item in line.split(";;"))


SMOOTH = _templates(
    """
    x.neg() ;; x.abs() ;; x.relu() ;; x.tanh() ;; x.sigmoid() ;; x.sin() ;; x.cos() ;; x.erf() ;; x.square()
    F.gelu(x) ;; F.silu(x) ;; F.softplus(x) ;; x.clamp(-3, 3).exp() ;; (x.abs() + 0.5).log()
    x.abs().add(0.1).sqrt() ;; (x.abs() + 0.5).rsqrt() ;; x * x * 0.5 ;; x.clamp(-1, 1) ;; x.abs().log1p()
    F.leaky_relu(x, 0.1) ;; x * 1.5 + 0.25 ;; x / 3 ;; 1 - x ;; x.clamp(-2, 2).expm1() ;; x.clamp(min=0.5)
    (x.abs() + 0.5).reciprocal() ;; F.elu(x) ;; x.clamp(-4, 4) ** 2 ;; x.atan() ;; F.hardtanh(x) ;; F.celu(x)
    F.gelu(x, approximate='tanh') ;; x.clamp(-2, 2).exp2() ;; F.logsigmoid(x) ;; F.hardswish(x) ;; F.selu(x)
    x.clamp(-2, 2).sinh() ;; x.clamp(-2, 2).cosh() ;; F.mish(x) ;; F.hardsigmoid(x) ;; F.softsign(x) ;; F.relu6(x)
    x.asinh() ;; (x.abs() + 1.5).acosh() ;; (x * 0.3).clamp(-0.9, 0.9).atanh() ;; x.clamp(-0.9, 0.9).asin()
    x.clamp(-0.9, 0.9).acos() ;; x.erfc() ;; (x.abs() + 0.5).log2() ;; (x.abs() + 0.5).log10()
    F.softshrink(x) ;; F.tanhshrink(x) ;; (x.abs() + 0.5) ** 1.5 ;; x.sinc() ;; (x.abs() + 1).lgamma()
    (x.abs() + 1).digamma() ;; torch.rsub(x, 2) ;; x.nan_to_num(0.5) ;; x.clamp(-1, 1).tan()
    x.clamp(-0.9, 0.9).erfinv()
    x.sigmoid().logit(0.01) ;; torch.special.i0(x.clamp(-2, 2)) ;; x ** 3 ;; 2.0 ** x.clamp(-2, 2) ;; x.positive()
    x.sum() * x ;; x * x.shape[0] ;; x / max(x.numel(), 1) ;; torch.special.log_ndtr(x.clamp(-2, 2)) ;; F.glu(x, d)
    """
)
NUMBERS = _templates(
    """
    x * n ;; x + n ;; x - n * 0.5 ;; n - x ;; torch.full_like(x, n) ;; x.clamp(max=n) ;; x.roll(n % 3, d) ;; x + n / 2
    torch.where(c, x, n) ;; x.masked_fill(c, n) ;; torch.arange(n % 5) ;; x * (n + n) ;; x if n > 2 else x * 2
    torch.full((2,), n) ;; x.new_full(x.shape, n) ;; torch.add(x, x, alpha=n) ;; x + n * n ;; x * n + n
    """
)
JUMPING = _templates(
    """
    x.floor() ;; x.frac() ;; F.threshold(x, 0.1, 2.0) ;; F.hardshrink(x) ;; torch.where(x > 0, y, x) ;; x.ceil()
    x.round() ;; x.trunc() ;; x.sign() ;; x % 1.5 ;; x.isnan() ;; x.isfinite() ;; x.isinf()
    torch.signbit(x) ;; x.fmod(1.25) ;; x.to(torch.int32) ;; x.to(torch.int64) ;; x.heaviside(y) ;; x // 0.7
    x.remainder(y.abs() + 0.5) ;; x > k ;; x <= 0 ;; x != k ;; x.logical_not() ;; x.to(torch.bool) ;; x.sgn()
    x.round(decimals=1)
    """
)
INTEGER = _templates(
    """
    x.neg() ;; x.abs() ;; x * 3 ;; x + 1 ;; x // 3 ;; x % 3 ;; x & 7 ;; x.clamp(-4, 4) ;; x ^ 5 ;; ~x
    x.clamp(min=2)
    x << 1 ;; x >> 1 ;; x.sign() ;; -(x // -2) ;; x.square() ;; x / 3 ;; x ** 2 ;; x.remainder(-4) ;; x.fmod(4)
    x - 100
    x.to(torch.float32) ;; x.to(torch.int32) ;; x.to(torch.int16) ;; x.to(torch.int8)
    x.to(torch.uint8) ;; x != 0
    x.to(torch.float16) ;; x.to(torch.int64) ;; x.to(torch.bool) ;; x * 0.5 ;; x + x.shape[0]
    torch.div(x, 3, rounding_mode='trunc')
    torch.div(x, -2, rounding_mode='floor') ;; x.to(torch.bfloat16) ;; x.bool().to(torch.float64) ;; x.sqrt()
    x.sigmoid() ;; x.sin()
    torch.clamp(x, k, 5) ;; x > k ;; x == k ;; x.logical_not() ;; x.logical_and(y) ;; x.bitwise_not()
    """
)
BOOL = _templates(
    """
    ~x ;; x.logical_not() ;; x & True ;; x ^ True ;; x.to(torch.float32) ;; x.to(torch.int64) ;; x.to(torch.int8)
    x * 2 ;; x + 1
    x.to(torch.bfloat16) ;; x * 1.5 ;; x.logical_xor(y) ;; x == y ;; x < y ;; x.to(torch.uint8)
    """
)
COMPLEX = _templates(
    """
    x.conj() * y ;; x * y ;; x + y ;; x.real ;; x.imag ;; torch.view_as_real(x) ;; x.abs() ;; x * 2 ;; x.neg()
    x.sum(d) ;; x.conj()
    x - y ;; x.mean(d) ;; x * 1j ;; x.conj().resolve_conj() ;; x.reciprocal() ;; x.exp() ;; x.transpose(d, e)
    """
)
FLOAT_PAIRS = _templates(
    """
    x + y ;; x - y ;; x * y ;; torch.maximum(x, y) ;; torch.minimum(x, y) ;; x / (y.abs() + 0.5) ;; torch.fmax(x, y)
    torch.atan2(y, x.abs() + 0.5) ;; torch.lerp(x, y, 0.25) ;; torch.addcmul(x, x, y, value=0.5) ;; torch.fmin(x, y)
    x + 2 * y ;; torch.copysign(x, y.abs() + 1) ;; torch.hypot(x, y) ;; torch.sub(x, y, alpha=3)
    torch.add(x, y, alpha=0.5)
    torch.addcdiv(x, y, z.abs() + 1, value=0.5) ;; torch.logaddexp(x, y) ;; torch.lerp(x, y, z)
    torch.xlogy(x, y.abs() + 0.5) ;; (x.abs() + 0.5) ** y.clamp(-2, 2) ;; torch.clamp(x, y, y + 1)
    torch.complex(x, x * 0.5)
    F.prelu(x, y.flatten()[:1]) ;; F.mse_loss(x, y) ;; F.l1_loss(x, y, reduction='none') ;; F.smooth_l1_loss(x, y)
    F.huber_loss(x, y)
    F.binary_cross_entropy_with_logits(x, y.sigmoid()) ;; F.kl_div(x, y.sigmoid(), reduction='sum')
    F.cosine_similarity(x, y, d)
    torch.dist(x, y) ;; F.gaussian_nll_loss(x, y, z.abs() + 0.1) ;; x.logaddexp2(y)
    F.poisson_nll_loss(x.clamp(-2, 2), y.abs())
    """
)
INTEGER_PAIRS = _templates(
    """
    x + y ;; x - y ;; x * y ;; torch.maximum(x, y) ;; x & y ;; x | y ;; x ^ y ;; x // (y.abs() + 1) ;; x << (y & 3)
    x % (y.abs() + 1) ;; x >> (y & 3) ;; torch.gcd(x, y) ;; torch.minimum(x, y) ;; torch.add(x, y, alpha=2)
    x / (y.abs() + 1)
    torch.lcm(x & 7, y & 7) ;; torch.div(x, y.abs() + 1, rounding_mode='trunc') ;; torch.where(x > y, x, y)
    x.fmod(y.abs() + 1)
    """
)
COMPARISONS = _templates(
    "x < y ;; x <= y ;; x == y ;; x != y ;; x > y ;; x >= y ;; torch.isclose(x, y) ;; torch.equal(x, y) * x"
)
CHOICES = _templates(
    """
    torch.where(c, x, y) ;; x.masked_fill(c, k) ;; torch.where(c, x, k) ;; x * c ;; (x + 1 if c.any() else x - 1)
    torch.where(c, 1.0, 0.0) * x ;; x.masked_scatter(c, y) ;; x[c[:1].expand(x.shape[:1])] if c.dim() == 1 else x
    """
)
VIEWS = _templates(
    """
    x.transpose(d, e) ;; x.unsqueeze(d) ;; x.squeeze(d) ;; x.flip(d) ;; x.flatten() ;; x.select(d, 0)
    x.select(d, -1)
    x.narrow(d, 1, 1) ;; x[::2] ;; x[..., 1:] ;; x[..., :-1] ;; x.contiguous() ;; x.squeeze() ;; x.detach()
    x.clone()
    x.unsqueeze(d).expand(*x.shape[:d], 3, *x.shape[d:]) ;; x.roll(k, d) ;; torch.tril(x) ;; x.view(x.shape)
    x.alias()
    torch.triu(x, 1) ;; x.split(2, d)[0] ;; x.chunk(2, d)[-1] ;; x.unbind(d)[0] ;; x.movedim(d, e) ;; x.chunk(2, d)
    x.repeat(*[2] * x.dim()) ;; x.diagonal(0, d, e) ;; x[..., None, :] ;; x.reshape(-1, x.shape[-1]) ;; x.view(-1)
    x.T.reshape(-1) ;; x.unfold(d, 2, 1) ;; x.expand_as(y) ;; torch.broadcast_to(x, y.shape)
    x.repeat_interleave(2, d) ;; x.mT
    x.as_strided((2, 2), (1, 2)) ;; x.permute(*reversed(range(x.dim()))) ;; x.reshape(x.shape) ;; x.swapaxes(d, e)
    x[0] ;; x[-1:]
    x.rot90(1, (d, e)) ;; torch.atleast_2d(x) ;; x.unflatten(d, (1, x.shape[d])) ;; x.split(1, d)
    x.tensor_split(2, d)[0]
    torch.diag_embed(x) ;; x.fliplr() ;; x.ravel() ;; x.diff(dim=d) ;; torch.atleast_1d(x) ;; x.tile(2) ;; x.t()
    x.hsplit(1)[0]
    """
)
JOINS = _templates(
    """
    torch.cat([x, y], d) ;; torch.stack([x, y], d) ;; torch.cat([x, x[:1], y], 0) ;; torch.stack([x, x, y], -1)
    torch.vstack([x, y])
    torch.hstack([x, y]) ;; torch.cat([x, y, z], -1) ;; torch.broadcast_tensors(x, y)
    torch.meshgrid(x, y, indexing='ij')
    """
)
PADS = _templates(
    """
    F.pad(x, (1, 2)) ;; F.pad(x, (0, 1, 1, 0)) ;; F.pad(x, (-1, 1)) ;; F.pad(x, (2, 0), value=1.0)
    F.pad(x, (1, 1), mode='reflect')
    F.pad(x, (1, 2), mode='replicate') ;; F.pad(x, (1, 1), mode='circular')
    """
)
FOLDS = _templates(
    """
    x.sum(d) ;; x.sum(d, keepdim=True) ;; x.mean(d, keepdim=True) ;; x.mean(d) ;; x.sum() ;; x.mean()
    torch.var_mean(x, d)
    x.sum((d, e)) ;; x.var(d, keepdim=True) ;; x.logsumexp(d) ;; x.clamp(-1.5, 1.5).prod(d) ;; x.var() ;; x.std(d)
    x.norm()
    (x * x + 0.1).sum(d, keepdim=True).sqrt() ;; torch.std_mean(x, d) ;; x.softmax(d) ;; x.log_softmax(d)
    F.normalize(x, dim=d)
    F.layer_norm(x, (x.shape[-1],)) ;; x * (x.square().mean(-1, keepdim=True) + 0.1).rsqrt() ;; x.nansum(d)
    x.clamp(-1, 1).prod()
    x - x.mean(d, keepdim=True) ;; x.cumsum(d) ;; x.clamp(-1.5, 1.5).cumprod(d) ;; x.logcumsumexp(d)
    F.softmin(x, d)
    torch.linalg.vector_norm(x, 1) ;; x.abs().amax(d) ;; x.mean((d, e), keepdim=True) ;; F.rms_norm(x, (x.shape[-1],))
    x.trace()
    x.sum(d, dtype=torch.float64) ;; x.softmax(d, dtype=torch.float32) ;; torch.linalg.vector_norm(x, dim=d)
    x.norm(p=1, dim=d)
    torch.var_mean(x, d, correction=0)[1] ;; torch.trapezoid(x, dim=d) ;; x.cumsum(d).flip(d) ;; x.nanmean(d)
    """
)
EXTREMES = _templates(
    """
    x.amax(d) ;; x.amin(d, keepdim=True) ;; x - x.amax(d, keepdim=True) ;; x.amax() ;; x.max(d).values ;; x.max()
    x.min()
    x.cummax(d).values ;; x.sort(d).values ;; x.topk(1, d).values ;; x.median() ;; x.median(d).values ;; x.aminmax()
    x.msort()
    x.kthvalue(1, d).values ;; x.min(d).values ;; x.cummin(d).values ;; x.sort(d, descending=True).values
    x.quantile(0.25)
    """
)
POSITIONS = _templates(
    """
    x.argmax(d) ;; x.argmin(d, keepdim=True) ;; x.argmax() ;; x.max(d).indices ;; x.min(d).indices
    x.argsort(d, stable=True)
    x.sort(d, stable=True).indices ;; x.max(d) ;; x.cummax(d).indices ;; x.count_nonzero(d)
    torch.searchsorted(x.flatten().msort(), y)
    torch.bucketize(x, y.flatten().msort())
    """
)
INTEGER_FOLDS = _templates(
    """
    x.sum(d) ;; x.sum() ;; x.sum(d, keepdim=True) ;; x.amax(d) ;; x.cumsum(d) ;; x.amin(d, keepdim=True) ;; x.prod(d)
    x.sum(d, dtype=torch.int32)
    x.any(d) ;; x.all() ;; x.count_nonzero() ;; x.max(d).values ;; x.sort(d).values ;; x.cumprod(d) ;; x.amax()
    x.unique()
    x.float().mean(d) ;; torch.bincount(x.flatten().abs().clamp(max=9)) ;; F.one_hot(x.abs().to(torch.int64) % 5, 5)
    """
)
BOOL_FOLDS = _templates(
    """
    x.any(d) ;; x.all(d) ;; x.any() ;; x.all(d, keepdim=True) ;; x.sum(d) ;; x.cumsum(d) ;; x.sum() ;; x.argmax(d)
    x.nonzero()
    x.count_nonzero(d)
    """
)
LOOKUPS = _templates(
    """
    x[i % x.shape[0]] ;; x.index_select(d, (i % x.shape[d]).flatten()[:5]) ;; x.take(i % x.numel())
    x[:, (i % x.shape[1]).flatten()[:2]]
    F.embedding(i % x.shape[0], x) ;; torch.gather(x, d, i % x.shape[d])
    x[(i % x.shape[0]).flatten()[:2], (i % x.shape[1]).flatten()[:2]]
    x.take_along_dim(i % x.shape[d], d) ;; x[..., i % x.shape[-1]]
    x.index_copy(d, (i % x.shape[d]).flatten()[:1], x.narrow(d, 0, 1) * 2)
    torch.zeros_like(x).index_add(d, i.flatten()[:x.shape[d]] % x.shape[d], x)
    x.index_fill(d, (i % x.shape[d]).flatten()[:2], k)
    x.scatter_add(d, i % x.shape[d], x.expand_as(i)) ;; x.scatter_reduce(d, i % x.shape[d], x.expand_as(i), 'amax')
    x.index_put((i % x.shape[0],), x[0], accumulate=True) ;; x.scatter(d, i % x.shape[d], k)
    F.embedding(i.abs() % 7, W(7, 3)) * 2
    F.embedding_bag(i.abs().reshape(1, -1) % 7, W(7, 3), mode='sum')
    F.cross_entropy(x, i.flatten()[:x.shape[0]] % x.shape[1])
    F.nll_loss(x.log_softmax(1), i.flatten()[:x.shape[0]] % x.shape[1])
    x.scatter_reduce(d, i % x.shape[d], x.expand_as(i), 'sum')
    x.select_scatter(y.select(d, 0), d, 0) ;; x.slice_scatter(y[:1], 0, 0, 1) ;; x[i[:1] % x.shape[0]]
    x.put(i.flatten()[:1] % x.numel(), y.flatten()[:1])
    """
)
LAYERS = _templates(
    """
    F.linear(x, W(5, L), W(5)) ;; F.linear(x, W(3, L)) ;; x @ W(L, 4) ;; torch.matmul(x, x.mT)
    F.layer_norm(x, (L,), W(L), W(L))
    torch.addmm(W(6), x, W(L, 6)) ;; torch.bmm(x, x.mT) ;; torch.einsum('...i,...j->...ij', x, x) ;; torch.outer(x, x)
    F.bilinear(x, x, W(2, L, L))
    torch.baddbmm(x @ x.mT, x, x.mT, beta=0.5) ;; x.flatten() @ x.flatten() ;; F.scaled_dot_product_attention(x, x, x)
    torch.mv(x, W(L))
    F.scaled_dot_product_attention(x, x, x, is_causal=True) ;; torch.cdist(x, x) ;; F.rms_norm(x, (L,), W(L))
    x * W(L) + W(L)
    F.group_norm(x, 1, W(C), W(C)) ;; torch.kron(x[:2], x[:2]) ;; torch.tensordot(x, W(L, 2), 1) ;; F.instance_norm(x)
    (x @ W(L, L)).softmax(-1) @ W(L, 2)
    F.batch_norm(x, V(C), V(C).abs() + 1, W(C), W(C)) ;; F.batch_norm(x, V(C), V(C), W(C), W(C), training=True)
    torch.cumulative_trapezoid(x)
    F.batch_norm(x, None, None, training=True) ;; x + V(L) ;; x * V(C, 1)[:, 0].sum()
    torch.cross(x, x.flip(0), dim=d)
    """
)
IMAGES = _templates(
    """
    F.conv2d(x, W(4, C, 3, 3), W(4), padding=1) ;; F.conv2d(x, W(C, 1, 2, 2), groups=C) ;; F.max_pool2d(x, 2)
    F.avg_pool2d(x, 2, 1)
    F.conv_transpose2d(x, W(C, 2, 2, 2), stride=2) ;; F.adaptive_avg_pool2d(x, 1) ;; F.interpolate(x, scale_factor=2)
    F.avg_pool2d(x, [3], [2], [1])
    F.max_pool2d(x, 3, 2, 1, ceil_mode=True) ;; F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2) ;; F.unfold(x, 2)
    F.interpolate(x, scale_factor=2, mode='bilinear')
    F.adaptive_max_pool2d(x, 2) ;; F.conv2d(x, W(2, C, 1, 1), stride=2)
    F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)
    F.batch_norm(x, V(C), V(C), W(C), W(C), training=True) ;; F.group_norm(x, C)
    F.interpolate(x, size=(3, 3), mode='nearest') ;; F.lp_pool2d(x, 2, 2)
    F.conv2d(x, W(2, C, 3, 3), dilation=2, padding=2) ;; x.contiguous(memory_format=torch.channels_last)
    F.pad(x, (1, 1, 1, 1), mode='reflect')
    F.conv1d(x.flatten(2), W(3, C, 2)) ;; F.max_pool1d(x.flatten(2), 2) ;; F.avg_pool1d(x.flatten(2), 2, 1, 1)
    x.pixel_unshuffle(1) ;; F.channel_shuffle(x, C)
    """
)
RANDOM = _templates(
    """
    F.dropout(x, 0.5) ;; torch.rand_like(x) + x ;; torch.randn_like(x) * x
    torch.bernoulli(x.sigmoid() * 0 + 0.3) + x ;; x + torch.rand(x.shape[-1:], dtype=x.dtype)
    torch.randint_like(x, 0, 5) + x ;; F.dropout(x, 0.25) * x ;; torch.randint(0, 9, x.shape) * 1 ;; torch.randperm(5)
    F.rrelu(x, training=True) ;; F.feature_alpha_dropout(x, 0.5, True)
    torch.empty_like(x).uniform_() + x ;; torch.empty_like(x).normal_() ;; torch.rand_like(x) < 0.5
    """
)
MADE = _templates(
    """
    torch.zeros_like(x) ;; torch.ones_like(x) ;; torch.full_like(x, k) ;; x.new_zeros(x.shape)
    torch.arange(x.shape[-1]) ;; x.new_ones(2, 3)
    torch.arange(x.shape[d], dtype=torch.float32) ;; torch.linspace(0, 1, x.shape[-1]) ;; torch.eye(x.shape[-1])
    torch.full((2,), k) ;; torch.tensor([1, k])
    torch.zeros(x.shape[:1], dtype=torch.int64) ;; torch.tensor(k) ;; x.new_full((2,), k) ;; torch.arange(0, 10, 3)
    torch.tril_indices(3, 3) ;; torch.ones(x.shape[-1:])
    torch.scalar_tensor(k) ;; x.new_empty(0) ;; torch.zeros(x.dim()) ;; torch.tensor(x.shape[0])
    torch.ones((), dtype=x.dtype)
    """
)
CASTS = _templates(
    "x.to(torch.float32) ;; x.to(torch.float16) ;; x.to(torch.bfloat16) ;; x.to(torch.float64) ;; x.type_as(y)"
)
WRITES = _templates(
    """
    x.add_(y) ;; x.mul_(0.5) ;; x[0] = k ;; x[..., :1] = y[..., :1] ;; x.t().add_(1) ;; x.copy_(y) ;; x.zero_()
    x.fill_(k) ;; x[c] = k ;; x.sub_(1)
    x.relu_() ;; x.clamp_(-1, 1) ;; x.select(d, 0).mul_(2) ;; x[::2].add_(y[::2]) ;; x.flatten()[:1].zero_()
    x.masked_fill_(c, k) ;; x.neg_() ;; x += n
    x.index_add_(d, (i % x.shape[d]).flatten()[:1], x.narrow(d, 0, 1) * 1) ;; x[i % x.shape[0]] = k
    x.transpose(d, e).mul_(y) ;; x.tanh_() ;; x += 1
    x.index_put_((i % x.shape[0],), x.flatten()[0] * 1, accumulate=True) ;; x.scatter_(d, i % x.shape[d], k)
    x.add_(y, alpha=2) ;; x.addcmul_(y, y)
    x.unbind(d)[0].add_(1) ;; x.lerp_(y, 0.5) ;; x.diagonal().fill_(k) ;; x.view(-1)[0] = k ;; x.div_(2) ;; x.abs_()
    x.logical_not_() ;; x.squeeze_(d) ;; x.t_() ;; x.sigmoid_()
    x.unsqueeze_(d) ;; x.bitwise_xor_(y) ;; x[:1, ...] += y[:1] ;; x.exponential_() ;; x.uniform_()
    x.bernoulli_(0.5) ;; x.cumsum_(d) ;; x.expand(2, *x.shape)[0].add_(1)
    torch.add(x.detach(), 1, out=x) ;; x.data.mul_(2) ;; x.detach().add_(1) ;; x.pow_(2) ;; x.sin_()
    x.chunk(2, d)[0].mul_(3) ;; x.sqrt_() ;; x.as_strided((2,), (1,)).zero_()
    """
)
COUNTER_WRITES = _templates("x.add_(1) ;; x.fill_(x.item() + 2) ;; x += 1 ;; x.mul_(2)")
EDITS = _templates(
    """
    model.W.mul_(0.5) ;; model.W.add_(1) ;; model.W.copy_(model.W.flip(0)) ;; model.W.data = model.W.data * 2
    model.W.data.mul_(-1) ;; model.W.neg_()
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
    """
)
ERRORS = _templates(
    """
    x[torch.tensor([100])] ;; F.embedding(torch.tensor([-1]), W(7, 3)) ;; x.index_select(d, torch.tensor([77]))
    torch.tensor([3]) // torch.zeros(1, dtype=torch.int64)
    torch.gather(x, d, torch.full_like(x, 99).to(torch.int64)) ;; F.one_hot(torch.tensor([9]), 4)
    F.nll_loss(x.log_softmax(1), torch.full((x.shape[0],), 50))
    """
)
