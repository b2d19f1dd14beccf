"""Has no models, but Django sends post_migrate only to apps with this module."""
