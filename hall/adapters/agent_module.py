from agent_attention_pytorch import AgentSelfAttention

attention = AgentSelfAttention(dim=16, num_agent_tokens=4, dim_head=8, heads=2)
