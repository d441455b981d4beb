"""A small model in plain PyTorch, trained on every worker of a run, and protected."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gemini_lab

dist.init_process_group("gloo")
torch.manual_seed(1)
inputs = torch.randn(4096, 32)
data = TensorDataset(inputs, inputs.square().sum(dim=1, keepdim=True))
sampler = DistributedSampler(data, seed=2)
loader = DataLoader(data, batch_size=16, sampler=sampler)
net = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Dropout(0.1), nn.Linear(256, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

protected = gemini_lab.protect(model=model, optimizer=optimizer, data=loader)
for epoch in protected.epochs(20):
    sampler.set_epoch(epoch)
    for features, target in loader:
        loss = nn.functional.mse_loss(model(features), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        protected.log(loss=loss.item())
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
