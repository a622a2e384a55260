from relaygen.cli import main

main()
