"""What is known of operators, for every storey above: traits (`traits`, `table`), and the definitions
of higher-order operators (`higher_order`). Imports torch, `contract` and `torch_private` only."""
