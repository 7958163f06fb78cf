"""Events with causes and source lines. Every layer tells; this one imports none of them."""
