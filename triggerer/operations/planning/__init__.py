"""The operation behind `triggerer plan`: what would change if another folder of DAG files replaced the present one."""
