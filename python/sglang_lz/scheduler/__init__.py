"""The penalties in the steps of upstream's scheduler, and the memory that they take there."""
