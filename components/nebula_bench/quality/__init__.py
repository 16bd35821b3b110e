"""How close answers from reused KV are to those of full prefill: by fusion method and by where the KV comes from."""
