"""From ATen ops to stages."""
