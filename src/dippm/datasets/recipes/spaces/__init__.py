"""What can vary in each family: every sampler draws one model. None of them needs a framework."""
