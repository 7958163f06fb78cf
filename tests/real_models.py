"""Models as transformers and torchvision write them: configurations that answer for their attributes, outputs that are data classes and
ordered dicts, masks, tied weights, blocks made of subclasses of Sequential. In place of those packages, which tests don't install.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F


class PretrainedConfig:
    attribute_map: ClassVar[dict] = {}

    def __setattr__(self, key, value):
        if key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        super().__setattr__(key, value)

    def __getattribute__(self, key):
        if key != "attribute_map" and key in super().__getattribute__("attribute_map"):
            key = super().__getattribute__("attribute_map")[key]
        return super().__getattribute__(key)

    def __init__(self, **kw):
        self.return_dict = True
        self.output_attentions = False
        self.output_hidden_states = False
        self.use_cache = True
        for k, v in kw.items():
            setattr(self, k, v)

    @property
    def use_return_dict(self):
        return self.return_dict


class GPT2Config(PretrainedConfig):
    attribute_map: ClassVar[dict] = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}

    def __init__(self):
        self.n_embd = 16
        self.n_layer = 1
        self.n_head = 2
        self.vocab_size = 11
        self.n_positions = 8
        self.pdrop = 0.0
        self.activation_function = "gelu_new"
        self.scale_attn_weights = True
        self.layer_norm_epsilon = 1e-5
        self.scale_attn_by_inverse_layer_idx = False
        self.reorder_and_upcast_attn = False
        super().__init__()


class ModelOutput(OrderedDict):
    def __post_init__(self):
        class_fields = fields(self)
        if not len(class_fields):
            raise ValueError("no fields")
        for field in class_fields:
            v = getattr(self, field.name)
            if v is not None:
                self[field.name] = v

    def __getitem__(self, k):
        if isinstance(k, str):
            return dict(self.items())[k]
        return self.to_tuple()[k]

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


@dataclass
class BaseOut(ModelOutput):
    last_hidden_state: torch.Tensor | None = None
    past_key_values: Any = None
    hidden_states: Any = None
    attentions: Any = None


@dataclass
class CausalLMOut(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: Any = None
    attentions: Any = None


class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        size_out = (*x.size()[:-1], self.nf)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        x = x.view(size_out)
        return x


class NewGELU(nn.Module):
    def forward(self, input):
        return 0.5 * input * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (input + 0.044715 * torch.pow(input, 3.0))))


ACT2CLS = {"gelu": nn.GELU, "gelu_new": NewGELU}


class ClassInstantier(OrderedDict):
    def __getitem__(self, key):
        content = super().__getitem__(key)
        cls, kwargs = content if isinstance(content, tuple) else (content, {})
        return cls(**kwargs)


ACT2FN = ClassInstantier(ACT2CLS)


def eager_attention_forward(module, query, key, value, attention_mask, head_mask=None, **kwargs):
    attn_weights = torch.matmul(query, key.transpose(-1, -2))
    if module.scale_attn_weights:
        attn_weights = attn_weights / torch.full([], value.size(-1) ** 0.5, dtype=attn_weights.dtype, device=attn_weights.device)
    if module.scale_attn_by_inverse_layer_idx:
        attn_weights = attn_weights / float(module.layer_idx + 1)
    if not module.is_cross_attention:
        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = module.bias[:, :, key_length - query_length : key_length, :key_length]
        mask_value = torch.finfo(attn_weights.dtype).min
        mask_value = torch.full([], mask_value, dtype=attn_weights.dtype, device=attn_weights.device)
        attn_weights = torch.where(causal_mask, attn_weights.to(attn_weights.dtype), mask_value)
    if attention_mask is not None:
        causal_mask = attention_mask[:, :, :, : key.shape[-2]]
        attn_weights = attn_weights + causal_mask
    attn_weights = nn.functional.softmax(attn_weights, dim=-1)
    attn_weights = attn_weights.type(value.dtype)
    attn_weights = module.attn_dropout(attn_weights)
    if head_mask is not None:
        attn_weights = attn_weights * head_mask
    attn_output = torch.matmul(attn_weights, value)
    return attn_output.transpose(1, 2), attn_weights


class GPT2Attention(nn.Module):
    def __init__(self, config, layer_idx=None):
        super().__init__()
        self.config = config
        m = config.n_positions
        self.register_buffer("bias", torch.tril(torch.ones((m, m), dtype=torch.bool)).view(1, 1, m, m), persistent=False)
        self.register_buffer("masked_bias", torch.tensor(-1e4), persistent=False)
        self.embed_dim = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.head_dim = self.embed_dim // self.num_heads
        self.split_size = self.embed_dim
        self.scale_attn_weights = config.scale_attn_weights
        self.is_cross_attention = False
        self.scale_attn_by_inverse_layer_idx = config.scale_attn_by_inverse_layer_idx
        self.layer_idx = layer_idx
        self.c_attn = Conv1D(3 * self.embed_dim, self.embed_dim)
        self.c_proj = Conv1D(self.embed_dim, self.embed_dim)
        self.attn_dropout = nn.Dropout(config.pdrop)
        self.resid_dropout = nn.Dropout(config.pdrop)

    def forward(
        self, hidden_states: tuple | None, past_key_value=None, attention_mask=None, head_mask=None, output_attentions=False, **kwargs
    ):
        query_states, key_states, value_states = self.c_attn(hidden_states).split(self.split_size, dim=2)
        shape_q = (*query_states.shape[:-1], -1, self.head_dim)
        shape_kv = (*key_states.shape[:-1], -1, self.head_dim)
        query_states = query_states.view(shape_q).transpose(1, 2)
        key_states = key_states.view(shape_kv).transpose(1, 2)
        value_states = value_states.view(shape_kv).transpose(1, 2)
        attention_interface: Callable = eager_attention_forward
        attn_output, attn_weights = attention_interface(
            self,
            query_states,
            key_states,
            value_states,
            attention_mask,
            head_mask=head_mask,
            dropout=self.attn_dropout.p if self.training else 0.0,
            **kwargs,
        )
        attn_output = attn_output.reshape(*attn_output.shape[:-2], -1).contiguous()
        attn_output = self.c_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


class GPT2MLP(nn.Module):
    def __init__(self, n, config):
        super().__init__()
        self.c_fc = Conv1D(n, config.hidden_size)
        self.c_proj = Conv1D(config.hidden_size, n)
        self.act = ACT2FN[config.activation_function]
        self.dropout = nn.Dropout(config.pdrop)

    def forward(self, h):
        return self.dropout(self.c_proj(self.act(self.c_fc(h))))


class GPT2Block(nn.Module):
    def __init__(self, config, layer_idx=None):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attn = GPT2Attention(config, layer_idx)
        self.ln_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = GPT2MLP(4 * config.hidden_size, config)

    def forward(self, hidden_states, attention_mask=None, use_cache=False, output_attentions=False, **kwargs):
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_output, self_attn_weights = self.attn(
            hidden_states, attention_mask=attention_mask, output_attentions=output_attentions, **kwargs
        )
        hidden_states = attn_output + residual
        residual = hidden_states
        hidden_states = residual + self.mlp(self.ln_2(hidden_states))
        outputs = (hidden_states,)
        if output_attentions:
            outputs += (self_attn_weights,)
        return outputs


class PreTrainedModel(nn.Module):
    def __init__(self, config, *inputs, **kwargs):
        super().__init__()
        self.config = config

    @property
    def device(self):
        return next(self.parameters()).device

    @property
    def dtype(self):
        return next(iter(self.parameters())).dtype


class GPT2Model(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_dim = config.hidden_size
        self.wte = nn.Embedding(config.vocab_size, self.embed_dim)
        self.wpe = nn.Embedding(config.n_positions, self.embed_dim)
        self.drop = nn.Dropout(config.pdrop)
        self.h = nn.ModuleList([GPT2Block(config, layer_idx=i) for i in range(config.num_hidden_layers)])
        self.ln_f = nn.LayerNorm(self.embed_dim, eps=config.layer_norm_epsilon)
        self.gradient_checkpointing = False

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        inputs_embeds=None,
        use_cache=None,
        output_attentions=None,
        output_hidden_states=None,
        return_dict=None,
        **kwargs,
    ):
        output_attentions = output_attentions if output_attentions is not None else self.config.output_attentions
        output_hidden_states = output_hidden_states if output_hidden_states is not None else self.config.output_hidden_states
        use_cache = use_cache if use_cache is not None else self.config.use_cache
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        if input_ids is not None and inputs_embeds is not None:
            raise ValueError("You cannot specify both")
        elif input_ids is not None:
            input_shape = input_ids.size()
            input_ids = input_ids.view(-1, input_shape[-1])
            batch_size = input_ids.shape[0]
        else:
            raise ValueError("either")
        device = input_ids.device if input_ids is not None else inputs_embeds.device
        if position_ids is None:
            position_ids = torch.arange(0, input_shape[-1], dtype=torch.long, device=device)
            position_ids = position_ids.unsqueeze(0)
        if inputs_embeds is None:
            inputs_embeds = self.wte(input_ids)
        hidden_states = inputs_embeds + self.wpe(position_ids).to(inputs_embeds.device)
        if attention_mask is not None:
            attention_mask = attention_mask.view(batch_size, -1)
            attention_mask = attention_mask[:, None, None, :]
            attention_mask = attention_mask.to(dtype=self.dtype)
            attention_mask = (1.0 - attention_mask) * torch.finfo(self.dtype).min
        hidden_states = self.drop(hidden_states)
        output_shape = (-1, *input_shape[1:], hidden_states.size(-1))
        all_self_attentions = () if output_attentions else None
        all_hidden_states = () if output_hidden_states else None
        for _i, block in enumerate(self.h):
            if output_hidden_states:
                all_hidden_states = (*all_hidden_states, hidden_states)
            outputs = block(
                hidden_states, attention_mask=attention_mask, use_cache=use_cache, output_attentions=output_attentions, **kwargs
            )
            hidden_states = outputs[0]
            if output_attentions:
                all_self_attentions = (*all_self_attentions, outputs[1])
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(output_shape)
        if not return_dict:
            return tuple(v for v in [hidden_states, None, all_hidden_states, all_self_attentions] if v is not None)
        return BaseOut(
            last_hidden_state=hidden_states, past_key_values=None, hidden_states=all_hidden_states, attentions=all_self_attentions
        )


def causal_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs):
    logits = logits.to(logits.dtype)
    if shift_labels is None:
        labels = nn.functional.pad(labels, (0, 1), value=ignore_index)
        shift_labels = labels[..., 1:].contiguous()
    logits = logits.view(-1, vocab_size)
    shift_labels = shift_labels.view(-1)
    shift_labels = shift_labels.to(logits.device)
    reduction = "sum" if num_items_in_batch is not None else "mean"
    loss = nn.functional.cross_entropy(logits, shift_labels, ignore_index=ignore_index, reduction=reduction)
    if reduction == "sum":
        loss = loss / num_items_in_batch
    return loss


class GPT2LMHead(PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.transformer = GPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    @property
    def loss_function(self):
        if hasattr(self, "_loss_function"):
            return self._loss_function
        return causal_loss

    def forward(self, input_ids=None, attention_mask=None, labels=None, return_dict=None, logits_to_keep=0, **kwargs):
        return_dict = return_dict if return_dict is not None else self.config.use_return_dict
        transformer_outputs = self.transformer(input_ids, attention_mask=attention_mask, return_dict=return_dict, **kwargs)
        hidden_states = transformer_outputs[0]
        slice_indices = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden_states[:, slice_indices, :])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        if not return_dict:
            output = (logits, *transformer_outputs[1:])
            return ((loss, *output)) if loss is not None else output
        return CausalLMOut(
            loss=loss, logits=logits, hidden_states=transformer_outputs.hidden_states, attentions=transformer_outputs.attentions
        )


# BERT
class BertSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.num_attention_heads = c.heads
        self.attention_head_size = c.hidden // c.heads
        self.all_head_size = c.hidden
        self.query = nn.Linear(c.hidden, c.hidden)
        self.key = nn.Linear(c.hidden, c.hidden)
        self.value = nn.Linear(c.hidden, c.hidden)
        self.dropout = nn.Dropout(c.p)

    def transpose_for_scores(self, x):
        new_x_shape = (*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        x = x.view(new_x_shape)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        mixed = self.query(hidden_states)
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        q = self.transpose_for_scores(mixed)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = self.dropout(nn.functional.softmax(scores, dim=-1))
        ctx = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        return ctx.view((*ctx.size()[:-2], self.all_head_size))


class BertLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attention = BertSelfAttention(c)
        self.dense = nn.Linear(c.hidden, c.hidden)
        self.LayerNorm = nn.LayerNorm(c.hidden, eps=1e-12)
        self.inter = nn.Linear(c.hidden, 4 * c.hidden)
        self.out = nn.Linear(4 * c.hidden, c.hidden)
        self.LayerNorm2 = nn.LayerNorm(c.hidden, eps=1e-12)
        self.chunk_size_feed_forward = 0
        self.act = F.gelu if isinstance(c.act, str) else c.act
        self.dropout = nn.Dropout(c.p)

    def forward(self, h, mask):
        a = self.LayerNorm(self.dropout(self.dense(self.attention(h, mask))) + h)
        return self.apply_chunking(self.feed_forward_chunk, self.chunk_size_feed_forward, 1, a)

    def apply_chunking(self, fn, size, dim, *tensors):
        assert len(tensors) > 0, f"{tensors} has to be a tuple/list of tensors"
        if size > 0:
            raise NotImplementedError
        return fn(*tensors)

    def feed_forward_chunk(self, a):
        return self.LayerNorm2(self.dropout(self.out(self.act(self.inter(a)))) + a)


@dataclass
class BertCfg:
    hidden: int = 16
    heads: int = 2
    p: float = 0.0
    layers: int = 1
    vocab: int = 11
    act: str = "gelu"
    pad: int = 0
    num_labels: int = 3
    problem_type: str | None = None


class BertEmbeddings(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.word = nn.Embedding(c.vocab, c.hidden, padding_idx=c.pad)
        self.pos = nn.Embedding(8, c.hidden)
        self.tok = nn.Embedding(2, c.hidden)
        self.LayerNorm = nn.LayerNorm(c.hidden, eps=1e-12)
        self.dropout = nn.Dropout(c.p)
        self.register_buffer("position_ids", torch.arange(8).expand((1, -1)), persistent=False)
        self.register_buffer("token_type_ids", torch.zeros(self.position_ids.size(), dtype=torch.long), persistent=False)

    def forward(self, input_ids, token_type_ids=None):
        b, s = input_ids.shape
        pos = self.position_ids[:, 0:s]
        if token_type_ids is None:
            if hasattr(self, "token_type_ids"):
                buffered = self.token_type_ids[:, :s]
                token_type_ids = buffered.expand(b, s)
            else:
                token_type_ids = torch.zeros(input_ids.shape, dtype=torch.long, device=self.position_ids.device)
        e = self.word(input_ids) + self.tok(token_type_ids)
        e += self.pos(pos)
        return self.dropout(self.LayerNorm(e))


class Bert(PreTrainedModel):
    def __init__(self, c):
        super().__init__(c)
        self.embeddings = BertEmbeddings(c)
        self.layer = nn.ModuleList(BertLayer(c) for _ in range(c.layers))
        self.pooler = nn.Sequential(OrderedDict([("dense", nn.Linear(c.hidden, c.hidden)), ("activation", nn.Tanh())]))
        self.classifier = nn.Linear(c.hidden, c.num_labels)
        self.num_labels = c.num_labels

    def get_extended_attention_mask(self, attention_mask, input_shape, device=None, dtype=None):
        if dtype is None:
            dtype = self.dtype
        if attention_mask.dim() == 3:
            ext = attention_mask[:, None, :, :]
        elif attention_mask.dim() == 2:
            ext = attention_mask[:, None, None, :]
        else:
            raise ValueError(f"Wrong shape for input_ids (shape {input_shape}) or attention_mask (shape {attention_mask.shape})")
        ext = ext.to(dtype=dtype)
        return (1.0 - ext) * torch.finfo(dtype).min

    def forward(self, input_ids, attention_mask=None, labels=None):
        if attention_mask is None:
            attention_mask = torch.ones(input_ids.shape, device=input_ids.device)
        mask = self.get_extended_attention_mask(attention_mask, input_ids.size())
        h = self.embeddings(input_ids)
        for layer in self.layer:
            h = layer(h, mask)
        pooled = self.pooler(h[:, 0])
        logits = self.classifier(pooled)
        loss = None
        if labels is not None:
            if self.config.problem_type is None:
                if self.num_labels == 1:
                    self.config.problem_type = "regression"
                elif self.num_labels > 1 and (labels.dtype == torch.long or labels.dtype == torch.int):
                    self.config.problem_type = "single_label_classification"
                else:
                    self.config.problem_type = "multi_label_classification"
            if self.config.problem_type == "single_label_classification":
                loss_fct = nn.CrossEntropyLoss()
                loss = loss_fct(logits.view(-1, self.num_labels), labels.view(-1))
        return CausalLMOut(loss=loss, logits=logits)


# torchvision
def conv3x3(i, o, stride=1, groups=1, dilation=1):
    return nn.Conv2d(i, o, 3, stride=stride, padding=dilation, groups=groups, bias=False, dilation=dilation)


class BasicBlock(nn.Module):
    expansion: int = 1

    def __init__(self, i, p, stride=1, downsample=None, norm_layer=None):
        super().__init__()
        self.conv1 = conv3x3(i, p, stride)
        self.bn1 = norm_layer(p)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(p, p)
        self.bn2 = norm_layer(p)
        self.downsample = downsample
        self.stride = stride

    def forward(self, x):
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.relu(out)
        return out


class ConvNormActivation(nn.Sequential):
    def __init__(self, i, o, norm=nn.BatchNorm2d, act=nn.ReLU, inplace=True):
        layers = [nn.Conv2d(i, o, 3, padding=1, bias=norm is None)]
        if norm is not None:
            layers.append(norm(o))
        if act is not None:
            layers.append(act(inplace=inplace))
        super().__init__(*layers)
        self.out_channels = o


class SE(nn.Module):
    def __init__(self, c, activation=nn.ReLU, scale_activation=nn.Sigmoid):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(c, 2, 1)
        self.fc2 = nn.Conv2d(2, c, 1)
        self.activation = activation()
        self.scale_activation = scale_activation()

    def _scale(self, input):
        return self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(input)))))

    def forward(self, input):
        return self._scale(input) * input


class StochasticDepth(nn.Module):
    def __init__(self, p, mode):
        super().__init__()
        self.p = p
        self.mode = mode

    def forward(self, input):
        p, mode, training = self.p, self.mode, self.training
        if p < 0.0 or p > 1.0:
            raise ValueError(f"drop probability has to be between 0 and 1, but got {p}")
        if mode not in ["batch", "row"]:
            raise ValueError("mode")
        if not training or p == 0.0:
            return input
        survival_rate = 1.0 - p
        size = [input.shape[0]] + [1] * (input.ndim - 1) if mode == "row" else [1] * input.ndim
        noise = torch.empty(size, dtype=input.dtype, device=input.device)
        noise = noise.bernoulli_(survival_rate)
        if survival_rate > 0.0:
            noise.div_(survival_rate)
        return input * noise


class FrozenBN(nn.BatchNorm2d):
    def extra(self):
        return 1


class ResNet(nn.Module):
    def __init__(self, block=BasicBlock, layers=(1, 1), num_classes=5, norm_layer=None):
        super().__init__()
        if norm_layer is None:
            norm_layer = partial(nn.BatchNorm2d, eps=1e-3)
        self._norm_layer = norm_layer
        self.inplanes = 4
        self.conv1 = nn.Conv2d(3, 4, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm_layer(4)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._make_layer(block, 4, layers[0])
        self.layer2 = self._make_layer(block, 8, layers[1], stride=2)
        self.cna = ConvNormActivation(8, 8)
        self.se = SE(8)
        self.sd = StochasticDepth(0.0, "row")
        self.fbn = FrozenBN(8)
        self.features = nn.Sequential(ConvNormActivation(8, 8), SE(8), nn.Identity())
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * block.expansion, num_classes)

    def _make_layer(self, block, planes, blocks, stride=1):
        down = None
        if stride != 1 or self.inplanes != planes:
            down = nn.Sequential(nn.Conv2d(self.inplanes, planes, 1, stride, bias=False), self._norm_layer(planes))
        made = [block(self.inplanes, planes, stride, down, self._norm_layer)]
        self.inplanes = planes
        return nn.Sequential(*made)

    def _forward_impl(self, x):
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.relu(x)
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.cna(x)
        x = self.se(x)
        x = self.sd(x)
        x = self.fbn(x)
        x = self.features(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        x = self.fc(x)
        return x

    def forward(self, x):
        return self._forward_impl(x)


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        if target.ndim == 2:
            target = target.max(dim=1)[1]
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target[None])
        res = []
        for k in topk:
            correct_k = correct[:k].flatten().sum(dtype=torch.float32)
            res.append(correct_k * (100.0 / batch_size))
        return res
